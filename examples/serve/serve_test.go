package main

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/staging"
)

func TestFromStartToReady(t *testing.T) {
	file := shard(t, 3<<20, 1)
	dev := &remote{}
	r := start(t, startTarget(t, file), dev, 0, nil)
	g := shut(t, &dev.in, 3) // the end of the first tensor shares a staging buffer with the next two
	id := r.load(`{}`)
	r.until(func(st status) bool { return st.Tensors > 0 })

	// Half of a model is none.
	require.Equal(t, http.StatusOK, r.call("GET", "/healthz", "", nil))
	var p problem
	for _, path := range []string{"/readyz", "/v1/tensors", "/v1/tensors/model.norm.weight"} {
		require.Equal(t, http.StatusServiceUnavailable, r.call("GET", path, "", &p))
		require.Equal(t, "no model is loaded yet", p.Err)
		require.Contains(t, p.Hint, "GET /load")
	}
	code, text := r.raw("GET", "/v1/models", "")
	require.Equal(t, http.StatusOK, code)
	require.JSONEq(t, `{"models": []}`, string(text))
	before := r.metrics()
	require.EqualValues(t, 1, before["nvstage_controllers_connected"])
	require.Zero(t, before["nvstage_model_tensors"])
	require.Zero(t, before["nvstage_loads_total/done"])

	g.open()
	require.Equal(t, done, r.ended(id).State)
	require.Equal(t, http.StatusOK, r.call("GET", "/healthz", "", nil))
	require.Equal(t, http.StatusOK, r.call("GET", "/readyz", "", nil))
	r.serves(id, of(t, file))

	var list struct{ Tensors []tensorInfo }
	r.call("GET", "/v1/tensors", "", &list)
	last := len(list.Tensors) - 1
	require.Equal(t, "model.embed_tokens.weight", list.Tensors[0].Name, "not in layer order")
	require.Equal(t, "lm_head.weight", list.Tensors[last].Name, "not in layer order")
	var models struct {
		Models []struct {
			ID, Tensors       int
			Bytes             int64
			Format, Device    string
			Source            source
			FirstLayerSeconds float64 `json:"first_layer_seconds"`
		}
	}
	r.call("GET", "/v1/models", "", &models)
	require.Len(t, models.Models, 1)
	m := models.Models[0]
	require.Equal(t, []any{id, last + 1, "safetensors", "remote", testNQN}, []any{m.ID, m.Tensors, m.Format, m.Device, m.Source.NQN})
	require.Positive(t, m.FirstLayerSeconds)

	var got map[string]float64
	require.Eventually(t, func() bool { got = r.metrics(); return got["nvstage_controllers_connected"] == 0 }, time.Minute, 5*time.Millisecond)
	require.EqualValues(t, last+1, got["nvstage_model_tensors"])
	require.EqualValues(t, m.Bytes, got["nvstage_model_bytes"])
	require.GreaterOrEqual(t, got["nvstage_read_bytes_total"], float64(m.Bytes))
	// A block that two tensors share is read twice when the second one was not wanted yet.
	require.Less(t, got["nvstage_read_bytes_total"], float64(len(file)+(last+2)*demoBlock))
	require.Equal(t, got["nvstage_reads_total"], got["nvstage_read_latency_seconds"])
	require.GreaterOrEqual(t, got["nvstage_queue_commands_total/io"], got["nvstage_reads_total"], "those of an association that is gone must count on")
	require.Greater(t, got["nvstage_queue_received_bytes_total/io"], float64(m.Bytes))
	for _, positive := range []string{
		"nvstage_load_seconds", "nvstage_load_first_tensor_seconds", "nvstage_load_first_layer_seconds", "nvstage_pool_buffers",
		"nvstage_queue_syscalls_total/io", "nvstage_queue_commands_total/admin", "nvstage_http_requests_total/503/GET /readyz", "go_goroutines",
	} {
		require.Positive(t, got[positive], positive)
	}
	require.Less(t, got["nvstage_load_first_layer_seconds"], got["nvstage_load_seconds"])
	require.EqualValues(t, 1, got["nvstage_loads_total/done"])
	require.EqualValues(t, 1, got["nvstage_models_in_memory"])
	require.Zero(t, got["nvstage_pool_buffers_out"])
	require.Contains(t, got, "nvstage_read_errors_total")

	global, err := prometheus.DefaultGatherer.Gather()
	require.NoError(t, err)
	for _, f := range global {
		require.False(t, strings.HasPrefix(f.GetName(), "nvstage"), "global state: %s", f.GetName())
	}
}

func TestProgress(t *testing.T) {
	dev := &remote{}
	r := start(t, startTarget(t, shard(t, 3<<20, 1)), dev, 0, func(s *server) {
		s.heartbeat = 2 * time.Millisecond
		s.http.ReadTimeout, s.http.WriteTimeout = 40*time.Millisecond, 40*time.Millisecond // which must not end a stream
		s.watchers = make(chan struct{}, 1)
	})
	e := r.follow()
	require.Equal(t, "text/event-stream", e.header.Get("Content-Type"))
	require.Equal(t, "no-cache, no-transform", e.header.Get("Cache-Control"))
	require.Equal(t, status{State: idle}, e.next())
	require.Equal(t, "idle", e.name)

	// The server has room for one such client; the others ask once.
	code, text := r.raw("GET", "/load", "")
	require.Equal(t, http.StatusServiceUnavailable, code, "%s", text)
	require.Contains(t, string(text), "1 clients follow the load already")
	ask := func() (st status) {
		code, text := r.raw("GET", "/load", "", "Accept", "application/json")
		require.Equal(t, http.StatusOK, code)
		require.NoError(t, jsonTo(text, &st))
		return st
	}
	require.Equal(t, status{State: idle}, ask())

	g := shut(t, &dev.in, 0)
	id := r.load(`{}`)
	var half status
	var seen []status
	for half.Bytes == 0 {
		half = e.next()
		seen = append(seen, half)
		require.Equal(t, "progress", e.name)
	}
	require.Zero(t, half.Tensors)
	require.Less(t, half.Bytes, half.TotalBytes)
	for e.beats < 100 {
		seen = append(seen, e.next())
	}
	g.open()
	for seen[len(seen)-1].running() {
		seen = append(seen, e.next())
	}
	last := seen[len(seen)-1]
	require.Equal(t, done, last.State)
	require.Equal(t, "done", e.name)
	require.Equal(t, last, ask())
	require.Equal(t, id, last.Serving)
	require.Positive(t, last.TotalBytes)
	require.Equal(t, last.TotalBytes, last.Bytes)
	require.EqualValues(t, last.TotalTensors, last.Tensors)
	require.Equal(t, "head", last.Layer)
	require.Zero(t, last.ETASeconds)
	require.Positive(t, last.BytesPerSecond)
	require.Equal(t, target(r), last.Source.Address)
	eta := false
	for i, st := range seen {
		require.Equal(t, id, st.Load)
		if i > 0 {
			require.GreaterOrEqual(t, st.Bytes, seen[i-1].Bytes)
			require.GreaterOrEqual(t, st.Tensors, seen[i-1].Tensors)
			require.GreaterOrEqual(t, st.Seconds, seen[i-1].Seconds)
		}
		if st.State == loading && st.Bytes > 0 && st.Bytes < st.TotalBytes {
			eta = eta || st.ETASeconds > 0
		}
	}
	require.True(t, eta, "no event said how long it still takes")

	// The same stream has the next load, whose end comes even when the client is late.
	second := r.load(`{}`)
	for last.Load != second || last.running() {
		last = e.next()
	}
	require.Equal(t, done, last.State)

	// When the client goes, so does the server's end.
	e.close()
	require.Eventually(t, func() bool { return len(r.server.watchers) == 0 }, time.Minute, time.Millisecond)
	r.follow().close()
}

func target(r *rig) string { return r.target.Addr() }

func TestSwapUnderRequests(t *testing.T) {
	files := [][]byte{shard(t, 2<<20, 1), shard(t, 2<<20, 2)}
	r := start(t, startTarget(t, files...), staging.Host{}, 0, nil)
	r.loaded(namespaces(1))
	const tensor = "model.layers.0.mlp.up_proj.weight"
	input, x := vector(width)
	answers := [][]float64{of(t, files[0]).product(tensor, x), of(t, files[1]).product(tensor, x)}
	require.NotEqual(t, answers[0], answers[1])

	var stop atomic.Bool
	var clients sync.WaitGroup
	var counts [2]atomic.Int64
	for range 2 {
		clients.Go(func() {
			for !stop.Load() {
				code, got := r.infer(tensor, input)
				which := 1 - got.Model%2 // loads alternate between the namespaces, beginning with load 1 of the first
				if code != http.StatusOK || !slices.Equal(answers[which], got.Output) {
					t.Errorf("status %d of model %d: %s", code, got.Model, got.Error)
					return
				}
				counts[which].Add(1)
			}
		})
	}
	for i := range 6 {
		base := counts[i%2].Load()
		require.Eventually(t, func() bool { return t.Failed() || counts[i%2].Load() > base }, time.Minute, time.Millisecond)
		id := r.loaded(namespaces(2 - i%2))
		require.Equal(t, i+2, id)
		require.Equal(t, http.StatusOK, r.call("GET", "/readyz", "", nil))
	}
	stop.Store(true)
	clients.Wait()
	r.serves(7, of(t, files[0]))
	r.freed(1)
	got := r.metrics()
	require.EqualValues(t, counts[0].Load()+counts[1].Load(), got["nvstage_http_requests_total/200/POST /v1/infer"])
	require.EqualValues(t, 7, got["nvstage_loads_total/done"])
}

// A request that began with a model ends with it, and then the model is freed.
func TestOldModelLivesAsLongAsItsRequests(t *testing.T) {
	files := [][]byte{shard(t, 1<<20, 1), shard(t, 1<<20, 2)}
	dev := &remote{}
	r := start(t, startTarget(t, files...), dev, 0, nil)
	first := r.loaded(namespaces(1))
	r.serves(first, of(t, files[0]))
	input, x := vector(width)
	g := shut(t, &dev.out, 0)
	answer := make(chan inferred)
	go func() {
		_, got := r.infer("lm_head.weight", input)
		answer <- got
	}()
	<-g.waiting
	second := r.loaded(namespaces(2))
	require.EqualValues(t, 2, r.metrics()["nvstage_models_in_memory"])
	g.open()
	got := <-answer
	require.Equal(t, first, got.Model)
	require.Equal(t, of(t, files[0]).product("lm_head.weight", x), got.Output)
	r.freed(1)
	r.serves(second, of(t, files[1]))
}

func TestFailedLoads(t *testing.T) {
	files := [][]byte{shard(t, 1<<20, 1), shard(t, 1<<20, 2), make([]byte, 1<<20)}
	r := start(t, startTarget(t, files...), staging.Host{}, 0, nil)
	first := r.load(namespaces(3))
	require.Equal(t, failed, r.ended(first).State)
	var p problem
	require.Equal(t, http.StatusServiceUnavailable, r.call("GET", "/readyz", "", &p))
	require.Contains(t, p.Err, "the load failed: namespaces [3] of "+testNQN)
	require.Contains(t, p.Err, "examples/shardload puts a model there")

	serving := r.loaded(namespaces(1))
	for body, want := range map[string]string{
		namespaces(3):                             "not a shard",
		namespaces(9):                             "namespace is not active",
		namespaces(1, 2):                          "is in shard 1 and in shard 2; name the namespaces of one model",
		`{"nqn": "` + testNQN + `-other"}`:        "connect",
		`{"address": "127.0.0.1:1"}`:              "connect",
		`{"address": "not an address at all"}`:    "address",
		`{"address": "[::1]x", "namespaces":[1]}`: "address",
	} {
		st := r.ended(r.load(body))
		require.Equal(t, failed, st.State, body)
		require.Contains(t, st.Error, want, body)
		require.Equal(t, serving, st.Serving)
		require.Equal(t, http.StatusOK, r.call("GET", "/readyz", "", nil))
	}
	r.serves(serving, of(t, files[0]))
	require.EqualValues(t, 8, r.metrics()["nvstage_loads_total/failed"])
	r.freed(1)
}

func TestBadRequests(t *testing.T) {
	r := start(t, startTarget(t, shard(t, 1<<20, 1)), staging.Host{}, 0, nil)
	r.loaded(`{}`)
	many := strings.Repeat("1,", maxNamespaces) + "1"
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"POST", "/load", ``, 400, "EOF"},
		{"POST", "/load", `[1]`, 400, "the body is not what is needed: it is a JSON array, not a JSON object"},
		{"POST", "/load", `{} {}`, 400, "something follows"},
		{"POST", "/load", `{"namespace": 1}`, 400, "unknown field"},
		{"POST", "/load", `{"namespaces": [0]}`, 400, "namespace 0: want 1 to"},
		{"POST", "/load", `{"namespaces": [4294967295]}`, 400, "namespace 4294967295: want 1 to"},
		{"POST", "/load", `{"namespaces": [-1]}`, 400, `the body is not what is needed: "namespaces" cannot be a JSON number -1`},
		{"POST", "/load", `{"namespaces": [1, 1]}`, 400, "namespace 1 is there twice"},
		{"POST", "/load", `{"namespaces": [` + many + `]}`, 400, "4097 namespaces: at most 4096"},
		{"POST", "/load", `{"nqn": "models"}`, 400, "NQN of the subsystem"},
		{"POST", "/load", `{"index": {"weight_map": {"a": "../b"}}}`, 400, "not the name of a file"},
		{"POST", "/load", `{"index": {"weight_map": {"a": "b"}}}`, 400, "the index has 1 files, and there are 0 namespaces"},
		{"POST", "/load", `{"nqn": "` + strings.Repeat("x", maxLoadBody) + `"}`, 413, "the body is longer than 16777216 bytes"},
		{"POST", "/v1/infer", `{"input": [` + strings.Repeat("1,", maxInferBody/2) + `1]}`, 413, "the body is longer"},
		{"POST", "/v1/infer", `{"tensor": "nothing"}`, 404, `no tensor "nothing"`},
		{"POST", "/v1/infer", `{"tensor": "model.norm.weight", "input": [1, 2]}`, 422, "of shape [256] times a vector of 2"},
		{"POST", "/v1/infer", `{"tensor": "model.norm.weight", "input": [1e999]}`, 400, "the body is not what is needed"},
		{"GET", "/v1/tensors/nothing", ``, 404, `no tensor "nothing"`},
		{"DELETE", "/load", ``, 409, "no load is running"},
		{"PATCH", "/load", ``, 405, "PATCH is not for /load"},
		{"POST", "/healthz", ``, 405, "POST is not for /healthz"},
		{"GET", "/v2/models", ``, 404, "nothing is at /v2/models"},
	} {
		code, text := r.raw(c.method, c.path, c.body)
		what := c.method + " " + c.path + " " + c.body[:min(len(c.body), 80)]
		require.Equal(t, c.code, code, "%s: %s", what, text)
		var p problem
		require.NoError(t, jsonTo(text, &p), what)
		require.Contains(t, p.Err, c.want, what)
		require.NotEmpty(t, p.Hint, what)
	}
	code, text := r.raw("POST", "/load", `{}`, "Sec-Fetch-Site", "cross-site")
	require.Equal(t, http.StatusForbidden, code)
	require.Contains(t, string(text), "another site's page")
	now, _ := r.server.loads.status()
	require.Equal(t, 1, now.Load, "a bad request began a load")
}

func TestOneLoadAtATime(t *testing.T) {
	files := [][]byte{shard(t, 3<<20, 1), shard(t, 1<<20, 2)}
	r := start(t, startTarget(t, files...), staging.Host{}, 0, nil)
	stall(r.target, 20)
	first := r.load(namespaces(1))
	r.until(func(st status) bool { return st.Bytes > 0 })
	var p problem
	require.Equal(t, http.StatusConflict, r.call("POST", "/load", namespaces(2), &p))
	require.Contains(t, p.Err, "another load is running: namespaces [1]")
	require.Contains(t, p.Hint, `"replace": true`)

	require.Equal(t, http.StatusAccepted, r.call("DELETE", "/load", "", nil))
	st := r.ended(first)
	require.Equal(t, cancelled, st.State)
	require.Equal(t, errCancelled.Error(), st.Error)
	r.freed(0)

	stall(r.target, 20)
	second := r.load(namespaces(1))
	r.until(func(st status) bool { return st.Load == second && st.Bytes > 0 })
	r.target.SetFaults(nvmetest.Faults{})
	third := r.load(`{"namespaces": [2], "replace": true}`)
	require.Equal(t, done, r.ended(third).State)
	r.serves(third, of(t, files[1]))
	r.freed(1)
	require.EqualValues(t, 2, r.metrics()["nvstage_loads_total/cancelled"])
	require.Equal(t, r.ended(third).Load, r.loaded(`{"namespaces": [1], "replace": true}`)-1)
}

func TestTargetDiesInMidLoad(t *testing.T) {
	files := [][]byte{shard(t, 1<<20, 1), shard(t, 3<<20, 2)}
	r := start(t, startTarget(t, files...), staging.Host{}, 0, nil)
	serving := r.loaded(namespaces(1))
	for name, fault := range map[string]nvmetest.Action{
		"connection reset": {Close: nvmetest.CloseReset},
		"media error":      {Status: nvme.StatusUnrecoveredReadError.Status().WithDNR()},
	} {
		t.Run(name, func(t *testing.T) {
			r.target.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{Queue: nvmetest.IOQueue, Opcodes: []nvme.Opcode{nvme.OpRead}, Nth: 30, Do: fault}}})
			st := r.ended(r.load(namespaces(2)))
			require.Equal(t, failed, st.State)
			require.Contains(t, st.Error, "reading tensor")
			require.Equal(t, serving, st.Serving)
			require.Positive(t, st.Bytes)
			r.freed(1)
			require.Zero(t, r.metrics()["nvstage_pool_buffers_out"])
			require.Equal(t, http.StatusOK, r.call("GET", "/readyz", "", nil))
		})
	}
	require.Positive(t, r.metrics()["nvstage_read_errors_total"])
	r.serves(serving, of(t, files[0]))
	r.target.SetFaults(nvmetest.Faults{})
	again := r.loaded(namespaces(2))
	r.serves(again, of(t, files[1]))
}

func TestShutdownInMidLoad(t *testing.T) {
	files := [][]byte{shard(t, 1<<20, 1), shard(t, 3<<20, 2)}
	dev := &remote{}
	r := start(t, startTarget(t, files...), dev, 0, nil)
	first := r.loaded(namespaces(1))
	input, x := vector(width)
	g := shut(t, &dev.out, 0)
	answer := make(chan inferred)
	go func() {
		_, got := r.infer("lm_head.weight", input)
		answer <- got
	}()
	<-g.waiting
	stall(r.target, 20)
	e := r.follow()
	defer e.close()
	id := r.load(namespaces(2))
	for st := e.next(); st.Load != id || st.Bytes == 0; st = e.next() { // the first is that of the load before
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.stop()
	}()
	var last status
	for st, ok := e.maybe(); ok; st, ok = e.maybe() {
		last = st
	}
	require.NoError(t, e.lines.Err(), "the stream did not end in an orderly way")
	require.Equal(t, cancelled, last.State)
	require.Equal(t, errStopping.Error(), last.Error)
	select {
	case <-stopped:
		require.Fail(t, "the server did not wait for a request")
	default:
	}
	g.open()
	got := <-answer
	require.Equal(t, first, got.Model)
	require.Equal(t, of(t, files[0]).product("lm_head.weight", x), got.Output)
	<-stopped // and nothing was left: see start
	_, err := r.server.loads.start(t.Context(), source{}, true)
	require.ErrorIs(t, err, errStopping)
}

// A request that takes longer than the grace is cut off.
func TestShutdownDoesNotWaitForEver(t *testing.T) {
	dev := &remote{}
	r := start(t, startTarget(t, shard(t, 1<<20, 1)), dev, 0, func(s *server) { s.drain = time.Millisecond })
	r.loaded(`{}`)
	g := shut(t, &dev.out, 0)
	cut := make(chan error)
	go func() {
		resp, err := r.client.Get(r.url + "/v1/tensors/lm_head.weight")
		if err == nil {
			resp.Body.Close()
		}
		cut <- err
	}()
	<-g.waiting
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.stop()
	}()
	require.Error(t, <-cut)
	g.open() // the copy that runs is waited for, the next one is not begun
	<-stopped
}

func TestMemoryLimit(t *testing.T) {
	files := [][]byte{shard(t, 3<<20, 1), shard(t, 3<<20, 2)}
	r := start(t, startTarget(t, files...), staging.Host{}, 6<<20, nil)
	first := r.loaded(namespaces(1))
	st := r.ended(r.load(namespaces(2)))
	require.Equal(t, failed, st.State)
	require.Contains(t, st.Error, "raise --memory-limit")
	r.serves(first, of(t, files[0]))
}
