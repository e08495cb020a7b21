package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nvstage/nvstage/staging"
)

// Limits of what a client may make the server do.
const (
	maxLoadBody   = 16 << 20 // bytes; an index of a large model has some 10 MB
	maxInferBody  = 1 << 20
	maxWatchers   = 64 // clients that follow progress at once
	writeTimeout  = time.Minute
	headerTimeout = 5 * time.Second
	readTimeout   = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	heartbeat     = 15 * time.Second // of progress that does not change
)

// server answers requests.
type server struct {
	loads    *loads
	metrics  *metrics
	defaults source // what a request to load leaves out
	drain    time.Duration
	log      *slog.Logger
	http     http.Server

	heartbeat time.Duration
	draining  chan struct{} // closed when the server shuts down
	watchers  chan struct{} // a token for each client that follows progress
	working   chan struct{} // a token for each request that computes
	mux       *http.ServeMux
	methods   map[string][]string // of each path
}

func newServer(l *loads, m *metrics, defaults source, drain time.Duration, log *slog.Logger) *server {
	s := &server{
		loads: l, metrics: m, defaults: defaults, drain: drain, log: log, heartbeat: heartbeat,
		draining: make(chan struct{}), watchers: make(chan struct{}, maxWatchers), working: make(chan struct{}, 2*runtime.GOMAXPROCS(0)),
		mux: http.NewServeMux(), methods: map[string][]string{},
	}
	s.handle("GET", "/healthz", s.health)
	s.handle("GET", "/readyz", s.ready)
	s.handle("GET", "/load", s.progress)
	s.handle("POST", "/load", s.load)
	s.handle("PUT", "/load", s.load)
	s.handle("DELETE", "/load", s.cancel)
	s.handle("GET", "/v1/models", s.models)
	s.handle("GET", "/v1/tensors", s.tensors)
	s.handle("GET", "/v1/tensors/{name...}", s.tensor)
	s.handle("POST", "/v1/infer", s.infer)
	exposition := m.handler()
	s.handle("GET", "/metrics", func(w http.ResponseWriter, r *http.Request) error {
		exposition.ServeHTTP(w, r)
		return nil
	})
	s.handle("", "/", s.unknown)
	sameOrigin := http.NewCrossOriginProtection() // a web page that somebody looks at must not swap models
	sameOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reply(w, &problem{http.StatusForbidden, "the request comes from another site's page", "send it from elsewhere than a browser"})
	}))
	s.http = http.Server{
		Handler:           sameOrigin.Handler(s.mux),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	return s
}

// handle has f answer requests of a method and a path, and counts them. The error that f returns is the answer, if it is not nil.
func (s *server) handle(method, path string, f func(w http.ResponseWriter, r *http.Request) error) {
	if method != "" {
		s.methods[path] = append(s.methods[path], method)
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := f(w, r); err != nil {
			reply(w, err)
		}
	})
	pattern := strings.TrimSpace(method + " " + path)
	s.mux.Handle(pattern, promhttp.InstrumentHandlerCounter(s.metrics.requests.MustCurryWith(prometheus.Labels{"route": pattern}), h))
}

// run serves until ctx ends. Then it takes no more requests, cancels the load that runs, and lets requests finish for as long as drain says.
// When it returns, no load runs and no model is in memory.
func (s *server) run(ctx context.Context, listener net.Listener) error {
	ended := make(chan error, 1)
	go func() { ended <- s.http.Serve(listener) }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		s.log.Info("shutting down", "grace", s.drain)
	}
	close(s.draining)
	s.loads.stop()
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.drain)
	defer cancel()
	if e := s.http.Shutdown(limit); e != nil {
		s.log.Warn("requests did not finish in time", "limit", s.drain)
		_ = s.http.Close() // ends their contexts
	}
	s.loads.close()
	return err
}

// problem is an error as clients see it.
type problem struct {
	status int
	Err    string `json:"error"`
	Hint   string `json:"hint,omitempty"` // what to do
}

func (p *problem) Error() string { return p.Err }

func reply(w http.ResponseWriter, err error) {
	p := (*problem)(nil)
	if !errors.As(err, &p) {
		p = &problem{status: http.StatusInternalServerError, Err: err.Error(), Hint: "the server's log may say more"}
	}
	if p.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	_ = writeJSON(w, p.status, p)
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // a client that is gone needs no answer
	return nil
}

// readJSON reads a request's body, which is one JSON object of at most limit bytes.
func readJSON(w http.ResponseWriter, r *http.Request, limit int64, v any, example string) error {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if too := (*http.MaxBytesError)(nil); errors.As(err, &too) {
		return &problem{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than %d bytes", limit), "want " + example}
	}
	if err != nil {
		return &problem{http.StatusBadRequest, "reading the body: " + err.Error(), ""}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err = d.Decode(v)
	if err == nil && d.More() {
		err = errors.New("something follows the JSON object")
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) { // its text has the types of this program
		err = fmt.Errorf("it is a JSON %s, not a JSON object", wrong.Value)
		if wrong.Field != "" {
			name := wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:] // without the names of embedded structs; bodies are flat
			err = fmt.Errorf("%q cannot be a JSON %s", name, wrong.Value)
		}
	}
	if err != nil {
		return &problem{http.StatusBadRequest, "the body is not what is needed: " + err.Error(), "want " + example}
	}
	return nil
}

func (s *server) unknown(w http.ResponseWriter, r *http.Request) error {
	if methods := s.methods[r.URL.Path]; methods != nil {
		w.Header().Set("Allow", strings.Join(methods, ", "))
		return &problem{http.StatusMethodNotAllowed, r.Method + " is not for " + r.URL.Path, "use " + strings.Join(methods, " or ")}
	}
	return &problem{http.StatusNotFound, "nothing is at " + r.URL.Path, "there are " + strings.Join(slices.Sorted(maps.Keys(s.methods)), ", ")}
}

// health answers as long as the process does: whoever restarts it when this fails must not do so during a load.
func (s *server) health(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// ready answers whether to send requests here.
func (s *server) ready(w http.ResponseWriter, _ *http.Request) error {
	select {
	case <-s.draining:
		return stopping()
	default:
	}
	m, err := s.use()
	if err != nil {
		return err
	}
	defer m.release()
	return writeJSON(w, http.StatusOK, map[string]any{"status": "ready", "model": m.id})
}

func stopping() error {
	return &problem{http.StatusServiceUnavailable, errStopping.Error(), "ask another server"}
}

// use returns the model that serves. The caller releases it.
func (s *server) use() (*model, error) {
	if m := s.loads.use(); m != nil {
		return m, nil
	}
	now, _ := s.loads.status()
	p := &problem{http.StatusServiceUnavailable, "no model is loaded yet", "GET /load shows how far the load is"}
	if now.State == failed || now.State == cancelled {
		p.Err, p.Hint = fmt.Sprintf("no model is loaded: the load %s: %s", now.State, now.Error), "POST /load loads a model"
	}
	return nil, p
}

// load begins to load another model.
func (s *server) load(w http.ResponseWriter, r *http.Request) error {
	var ask struct {
		source
		Index   json.RawMessage `json:"index"`   // a model.safetensors.index.json
		Replace bool            `json:"replace"` // cancel the load that runs
	}
	const example = `{"namespaces": [1, 2]}, and "address", "nqn", "index", "replace" as needed`
	if err := readJSON(w, r, maxLoadBody, &ask, example); err != nil {
		return err
	}
	src := ask.source
	if src.Address == "" {
		src.Address = s.defaults.Address
	}
	if src.NQN == "" {
		src.NQN = s.defaults.NQN
	}
	if len(ask.Index) > 0 {
		x, err := staging.ParseIndex(ask.Index)
		if err != nil {
			return &problem{http.StatusBadRequest, err.Error(), "give the content of model.safetensors.index.json as it is"}
		}
		src.index = x
	}
	if err := src.check(); err != nil {
		return &problem{http.StatusBadRequest, err.Error(), "want " + example}
	}
	st, err := s.loads.start(r.Context(), src, ask.Replace)
	switch {
	case errors.Is(err, errBusy):
		return &problem{http.StatusConflict, err.Error(), `wait until GET /load says that it is done, DELETE /load, or ask with "replace": true`}
	case errors.Is(err, errStopping):
		return stopping()
	case err != nil:
		return err
	}
	w.Header().Set("Location", "/load")
	return writeJSON(w, http.StatusAccepted, st)
}

// cancel cancels the load that runs.
func (s *server) cancel(w http.ResponseWriter, _ *http.Request) error {
	if !s.loads.cancel(errCancelled) {
		return &problem{http.StatusConflict, "no load is running", "GET /load shows what became of the last one"}
	}
	now, _ := s.loads.status()
	return writeJSON(w, http.StatusAccepted, now)
}

// models lists the model that serves, if there is one.
func (s *server) models(w http.ResponseWriter, _ *http.Request) error {
	type entry struct {
		ID                int            `json:"id"` // number of its load
		Source            source         `json:"source"`
		Format            staging.Format `json:"format"`
		LZ4               bool           `json:"lz4"`
		Device            string         `json:"device"`
		Tensors           int            `json:"tensors"`
		Bytes             int64          `json:"bytes"`
		Loaded            time.Time      `json:"loaded"`
		Seconds           float64        `json:"seconds"` // from the first read
		FirstLayerSeconds float64        `json:"first_layer_seconds"`
	}
	list := []entry{}
	if m := s.loads.use(); m != nil {
		defer m.release()
		list = append(list, entry{
			m.id, m.source, m.format, m.lz4, m.dev.Name(), len(m.tensors), m.bytes, m.loaded,
			m.took.FirstToken.Seconds(), m.took.FirstLayer.Seconds(),
		})
	}
	return writeJSON(w, http.StatusOK, map[string]any{"models": list})
}

// tensorInfo is a tensor as clients see it.
type tensorInfo struct {
	Model  int     `json:"model"` // number of its load
	Name   string  `json:"name"`
	DType  string  `json:"dtype"`
	Shape  []int64 `json:"shape"`
	Bytes  int64   `json:"bytes"`
	SHA256 string  `json:"sha256,omitempty"` // of the bytes in memory
}

func (m *model) info(t *staging.Tensor) tensorInfo {
	return tensorInfo{Model: m.id, Name: t.Name, DType: t.DType.String(), Shape: append([]int64{}, t.Shape...), Bytes: t.Memory.Len()}
}

// tensors lists the tensors in the order in which they were loaded.
func (s *server) tensors(w http.ResponseWriter, _ *http.Request) error {
	m, err := s.use()
	if err != nil {
		return err
	}
	defer m.release()
	list := make([]tensorInfo, len(m.tensors))
	for i, t := range m.tensors {
		list[i] = m.info(t)
	}
	return writeJSON(w, http.StatusOK, map[string]any{"tensors": list})
}

// tensor shows one tensor, with the checksum of what is in memory now.
func (s *server) tensor(w http.ResponseWriter, r *http.Request) error {
	m, err := s.use()
	if err != nil {
		return err
	}
	defer m.release()
	t, err := m.tensor(r.PathValue("name"))
	if err != nil {
		return err
	}
	done, err := s.work(r.Context())
	if err != nil {
		return err
	}
	defer done()
	sum := sha256.New()
	if err := m.read(r.Context(), t, func(b []byte) { sum.Write(b) }); err != nil {
		return err
	}
	info := m.info(t)
	info.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return writeJSON(w, http.StatusOK, info)
}

func (m *model) tensor(name string) (*staging.Tensor, error) {
	t := m.byName[name]
	if t == nil {
		return nil, &problem{http.StatusNotFound, fmt.Sprintf("the model has no tensor %q", name), "GET /v1/tensors lists them"}
	}
	return t, nil
}

// work waits for a place among the requests that compute, so that many of them do not take the CPU from the queues.
func (s *server) work(ctx context.Context) (done func(), err error) {
	select {
	case s.working <- struct{}{}:
		return func() { <-s.working }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
