package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	promodel "github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/staging"
)

// runsProgram makes the test binary the program itself, for tests that need a process.
const runsProgram = "SERVE_TEST_RUNS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(runsProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

const testNQN = "nqn.2025-01.io.nvstage:test"

// startTarget starts a target whose namespaces, from 1 on, have these bytes.
func startTarget(t *testing.T, spaces ...[]byte) *nvmetest.Target {
	t.Helper()
	sub := nvmetest.Subsystem{NQN: testNQN}
	for _, b := range spaces {
		b = append(b, make([]byte, -len(b)&(demoBlock-1))...)
		sub.Namespaces = append(sub.Namespaces, nvmetest.Namespace{BlockSize: demoBlock, Backend: nvmetest.MemoryOf(b)})
	}
	target, err := nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{sub}})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, target.Close())
		require.Empty(t, target.Violations())
	})
	return target
}

// stall makes target answer n reads of blocks, and none after them.
func stall(target *nvmetest.Target, n int) {
	target.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{
		Queue: nvmetest.IOQueue, Opcodes: []nvme.Opcode{nvme.OpRead}, Nth: n + 1, Do: nvmetest.Action{Drop: true},
	}}})
}

// rig is a server on a port of its own.
type rig struct {
	*testing.T
	url    string
	client *http.Client
	server *server
	target *nvmetest.Target
	stop   func() // shuts the server down and waits
}

// start starts a server, which loads nothing yet. change may change it before.
func start(t *testing.T, target *nvmetest.Target, dev staging.Device, limit int64, change func(s *server)) *rig {
	t.Helper()
	memory := &staging.Limit{Bytes: limit}
	conn := connector{host: nvmetcp.UniqueHost(), limit: 20 * time.Second, options: nvmetcp.Options{NumIOQueues: 2, CommandTimeout: 20 * time.Second}}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	ctx, cancel := context.WithCancel(t.Context())
	p := &pool{
		cfg: staging.PoolConfig{Bytes: 1 << 20, BufferSize: 64 << 10, Limit: memory, Devices: []staging.Device{dev}, Debug: true},
		log: log, stop: cancel,
	}
	m := newMetrics(p)
	l := newLoads(conn, p, memory, dev, m, log)
	s := newServer(l, m, source{Address: target.Addr(), NQN: testNQN}, time.Minute, log)
	if change != nil {
		change(s)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx, listener) }()
	transport := &http.Transport{}
	r := &rig{T: t, url: "http://" + listener.Addr().String(), client: &http.Client{Transport: transport, Timeout: time.Minute}, server: s, target: target}
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
		transport.CloseIdleConnections()
		require.NoError(t, p.failure())
		if made := p.now(); made != nil {
			require.Zero(t, made.Out())
		}
		require.NoError(t, p.close())
		require.Zero(t, memory.Used(), "memory of models that was not freed")
	})
	t.Cleanup(r.stop)
	return r
}

// call makes a request, and decodes the answer into v, unless that is nil.
func (r *rig) call(method, path, body string, v any) (code int) {
	r.Helper()
	code, text := r.raw(method, path, body)
	if v != nil {
		require.NoError(r, json.Unmarshal(text, v), "%s", text)
	}
	return code
}

func (r *rig) raw(method, path, body string, header ...string) (code int, text []byte) {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), method, r.url+path, strings.NewReader(body))
	require.NoError(r, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.client.Do(req)
	require.NoError(r, err)
	defer resp.Body.Close()
	text, err = io.ReadAll(resp.Body)
	require.NoError(r, err)
	return resp.StatusCode, text
}

// load asks for a load, and returns its number.
func (r *rig) load(body string) int {
	r.Helper()
	var st status
	require.Equal(r, http.StatusAccepted, r.call("POST", "/load", body, &st))
	return st.Load
}

// loaded loads namespaces, and waits until they serve.
func (r *rig) loaded(body string) int {
	r.Helper()
	id := r.load(body)
	st := r.ended(id)
	require.Equal(r, done, st.State, st.Error)
	return id
}

// ended waits until the load with this number has ended.
func (r *rig) ended(id int) status {
	r.Helper()
	return r.until(func(st status) bool { return st.Load == id && !st.running() })
}

// until waits for a status.
func (r *rig) until(is func(st status) bool) status {
	r.Helper()
	e := r.follow()
	defer e.close()
	for {
		if st := e.next(); is(st) {
			return st
		}
	}
}

// events is a stream of server-sent events.
type events struct {
	r      *rig
	header http.Header
	body   io.ReadCloser
	lines  *bufio.Scanner
	name   string // of the last one
	beats  int    // comments so far
}

// follow opens the stream of progress.
func (r *rig) follow() *events {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), "GET", r.url+"/load", nil)
	require.NoError(r, err)
	req.Header.Set("Accept", "text/event-stream")
	resp, err := (&http.Client{Transport: r.client.Transport}).Do(req)
	require.NoError(r, err)
	require.Equal(r, http.StatusOK, resp.StatusCode)
	return &events{r: r, header: resp.Header, body: resp.Body, lines: bufio.NewScanner(resp.Body)}
}

func (e *events) close() { _ = e.body.Close() }

// next is the next event.
func (e *events) next() status {
	e.r.Helper()
	st, ok := e.maybe()
	require.True(e.r, ok, "the stream ended: %v", e.lines.Err())
	return st
}

// maybe is the next event, if the stream does not end before it.
func (e *events) maybe() (st status, ok bool) {
	e.r.Helper()
	for e.lines.Scan() {
		field, value, _ := strings.Cut(e.lines.Text(), ": ")
		switch field {
		case "":
			if value != "" {
				e.beats++
			} else if ok {
				return st, true
			}
		case "event":
			e.name = value
		case "data":
			require.NoError(e.r, json.Unmarshal([]byte(value), &st))
			ok = true
		default:
			require.Fail(e.r, "not a field of an event", "%q", e.lines.Text())
		}
	}
	return st, false
}

// metrics are the values of /metrics: counters and gauges, and of histograms the count, by their name, and with their only label's value as name/value.
func (r *rig) metrics() map[string]float64 {
	r.Helper()
	code, text := r.raw("GET", "/metrics", "")
	require.Equal(r, http.StatusOK, code)
	parser := expfmt.NewTextParser(promodel.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	require.NoError(r, err)
	values := map[string]float64{}
	for name, f := range families {
		require.NotEmpty(r, f.GetHelp(), name)
		for _, m := range f.GetMetric() {
			key := name
			for _, l := range m.GetLabel() {
				key += "/" + l.GetValue()
			}
			values[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// freed waits until n models are in memory.
func (r *rig) freed(n float64) {
	r.Helper()
	require.Eventually(r, func() bool { return r.metrics()["nvstage_models_in_memory"] == n }, time.Minute, 5*time.Millisecond)
}

// reference is what a model has, by another way than the server's.
type reference struct {
	header *staging.Header
	file   []byte
}

// of reads a safetensors shard.
func of(t *testing.T, file []byte) reference {
	t.Helper()
	h, err := staging.ParseHeader(file[8 : 8+binary.LittleEndian.Uint64(file)])
	require.NoError(t, err)
	return reference{h, file}
}

func (f reference) data(name string) []byte {
	info := f.header.Tensor(name)
	return f.file[f.header.DataOffset+info.Begin : f.header.DataOffset+info.End]
}

// product is a BF16 matrix times a vector.
func (f reference) product(name string, x []float64) []float64 {
	data := f.data(name)
	y := make([]float64, len(data)/2/len(x))
	for i := range y {
		for j := range x {
			at := 2 * (i*len(x) + j)
			y[i] += float64(math.Float32frombits(uint32(data[at])<<16|uint32(data[at+1])<<24)) * x[j]
		}
	}
	return y
}

// serves checks that the model with this number serves, and that each tensor is as in its reference.
func (r *rig) serves(id int, want ...reference) {
	r.Helper()
	var list struct{ Tensors []tensorInfo }
	require.Equal(r, http.StatusOK, r.call("GET", "/v1/tensors", "", &list))
	count := 0
	for _, w := range want {
		for i := range w.header.Tensors {
			info := &w.header.Tensors[i]
			var got tensorInfo
			require.Equal(r, http.StatusOK, r.call("GET", "/v1/tensors/"+info.Name, "", &got))
			sum := sha256.Sum256(w.data(info.Name))
			require.Equal(r, tensorInfo{id, info.Name, info.DType.String(), info.Shape, info.Bytes(), hex.EncodeToString(sum[:])}, got)
			count++
		}
	}
	require.Len(r, list.Tensors, count)
}

func namespaces(list ...int) string {
	text, _ := json.Marshal(map[string]any{"namespaces": list})
	return string(text)
}

// shard is a made-up model.
func shard(t *testing.T, size int64, seed uint64) []byte {
	t.Helper()
	b, err := madeUp(size, seed)
	require.NoError(t, err)
	return b
}

// vector is n numbers, as JSON and as they are.
func vector(n int) (text string, x []float64) {
	for i := range n {
		x = append(x, 1/float64(i+1))
	}
	b, _ := json.Marshal(x)
	return string(b), x
}

// gate is where copies wait.
type gate struct {
	tensors int64         // whose copies go through it when it is closed: the first so many
	waiting chan struct{} // told of each copy that waits
	opened  chan struct{}
	open    func()
}

// shut puts a closed gate at a place. It is opened by open, or when the test ends.
func shut(t *testing.T, place *atomic.Pointer[gate], tensors int64) *gate {
	g := &gate{tensors: tensors, waiting: make(chan struct{}, 1000), opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	place.Store(g)
	t.Cleanup(g.open)
	return g
}

// pass calls f, now or when the gate is opened, on another goroutine.
func (g *gate) pass(m remoteMemory, f func()) {
	go func() {
		if g != nil && m.number > g.tensors {
			g.waiting <- struct{}{}
			<-g.opened
		}
		f()
	}()
}

// remote is a device whose memory the host cannot address, and that copies behind the caller's back, like a GPU.
type remote struct {
	staging.Host
	in, out atomic.Pointer[gate]
	count   atomic.Int64
}

type remoteMemory struct {
	staging.Memory
	number int64 // from 1
}

func (remoteMemory) Bytes() []byte { return nil }

func (d *remote) Name() string { return "remote" }

func (d *remote) Alloc(n int64) (staging.Memory, error) {
	m, err := d.Host.Alloc(n)
	return remoteMemory{m, d.count.Add(1)}, err
}

func (d *remote) CopyIn(dst staging.Memory, off int64, src []byte, done func(error)) {
	m := dst.(remoteMemory)
	d.in.Load().pass(m, func() { d.Host.CopyIn(m.Memory, off, src, done) })
}

func (d *remote) CopyOut(dst []byte, src staging.Memory, off int64, done func(error)) {
	m := src.(remoteMemory)
	d.out.Load().pass(m, func() { d.Host.CopyOut(dst, m.Memory, off, done) })
}

func (r *rig) infer(tensor, input string) (code int, answer inferred) {
	code = r.call("POST", "/v1/infer", fmt.Sprintf(`{"tensor": %q, "input": %s}`, tensor, input), &answer)
	return code, answer
}

type inferred struct {
	Model  int
	Output []float64
	Error  string
	Hint   string
}
