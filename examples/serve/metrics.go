package main

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/queue"
	"github.com/nvstage/nvstage/staging"
)

// metrics are what /metrics shows, in a registry of their own.
type metrics struct {
	registry    *prometheus.Registry
	reads       prometheus.Counter
	readErrors  prometheus.Counter
	readBytes   prometheus.Counter
	latency     prometheus.Histogram
	loads       *prometheus.CounterVec
	loadSeconds prometheus.Gauge
	firstTensor prometheus.Gauge
	firstLayer  prometheus.Gauge
	models      prometheus.Gauge
	requests    *prometheus.CounterVec
	connections connections
}

func newMetrics(p *pool) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		registry:   prometheus.NewRegistry(),
		reads:      counter("nvstage_reads_total", "Reads of model data that completed without an error."),
		readErrors: counter("nvstage_read_errors_total", "Reads of model data that failed or were cut short."),
		readBytes:  counter("nvstage_read_bytes_total", "Bytes of model data read, with the padding to whole blocks."),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "nvstage_read_latency_seconds", Help: "Time from a read's command to its completion; with deep queues most of it is waiting.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 16),
		}),
		loads:       prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nvstage_loads_total", Help: "Loads that ended, by result."}, []string{"result"}),
		loadSeconds: gauge("nvstage_load_seconds", "Time that the last load which was done took, from its request on."),
		firstTensor: gauge("nvstage_load_first_tensor_seconds", "Of that load, time from the first read to the first whole tensor."),
		firstLayer:  gauge("nvstage_load_first_layer_seconds", "Of that load, time from the first read until a forward pass could have begun; 0 without layers."),
		models:      gauge("nvstage_models_in_memory", "Models in memory, whole or not: 2 during a swap."),
		requests:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nvstage_http_requests_total", Help: "HTTP requests answered."}, []string{"route", "code"}),
	}
	for _, result := range []state{done, failed, cancelled} {
		m.loads.WithLabelValues(string(result)) // shown from the start, as 0
	}
	m.registry.MustRegister(
		m.reads, m.readErrors, m.readBytes, m.latency, m.loads, m.loadSeconds, m.firstTensor, m.firstLayer, m.models, m.requests, &m.connections,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	ofPool := func(f func(*staging.Pool) float64) func() float64 {
		return func() float64 {
			if made := p.now(); made != nil {
				return f(made)
			}
			return 0
		}
	}
	m.gauge("nvstage_pool_buffers", "Staging buffers; 0 before the pool is made.", ofPool(func(s *staging.Pool) float64 { return float64(s.Info().Buffers) }))
	m.gauge("nvstage_pool_buffers_out", "Staging buffers in use.", ofPool(func(s *staging.Pool) float64 { return float64(s.Out()) }))
	m.gauge("nvstage_pool_locked_bytes", "Staging memory that cannot be swapped out.", ofPool(func(s *staging.Pool) float64 { return float64(s.Info().LockedBytes) }))
	return m
}

func (m *metrics) gauge(name, help string, f func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
}

// watch adds the metrics of l.
func (m *metrics) watch(l *loads) {
	ofModel := func(f func(*model) float64) func() float64 {
		return func() float64 {
			served := l.use()
			if served == nil {
				return 0
			}
			defer served.release()
			return f(served)
		}
	}
	ofLoad := func(f func(status) float64) func() float64 {
		return func() float64 {
			now, _ := l.status()
			return f(now)
		}
	}
	m.gauge("nvstage_model_tensors", "Tensors of the model that serves.", ofModel(func(s *model) float64 { return float64(len(s.tensors)) }))
	m.gauge("nvstage_model_bytes", "Bytes of the model that serves.", ofModel(func(s *model) float64 { return float64(s.bytes) }))
	m.gauge("nvstage_load_progress_bytes", "Bytes that the latest load has read.", ofLoad(func(s status) float64 { return float64(s.Bytes) }))
	m.gauge("nvstage_load_progress_total_bytes", "Bytes that it has to read.", ofLoad(func(s status) float64 { return float64(s.TotalBytes) }))
}

// read counts a read. It is called on the queues' threads.
func (m *metrics) read(r *staging.Read) {
	if r.Err != nil {
		m.readErrors.Inc()
		return
	}
	m.reads.Inc()
	m.readBytes.Add(float64(len(r.Buf)))
	m.latency.Observe(r.Latency.Seconds())
}

// finished counts a load; served is its model, if it was done.
func (m *metrics) finished(st status, served *model) {
	m.loads.WithLabelValues(string(st.State)).Inc()
	if served != nil {
		m.loadSeconds.Set(st.Seconds)
		m.firstTensor.Set(served.took.FirstTensor.Seconds())
		m.firstLayer.Set(served.took.FirstLayer.Seconds())
	}
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 8})
}

// connections collects what all associations have counted, those that are gone included.
type connections struct {
	mu    sync.Mutex
	live  []*nvmetcp.Subsystem
	gone  tally
	alive time.Duration // the latest round trip of a Keep Alive
}

// tally is a sum of nvmetcp.Stats.
type tally struct {
	retries   uint64
	admin, io queue.Stats
}

func (t *tally) add(s nvmetcp.Stats) {
	t.retries += s.Retries
	sum(&t.admin, s.Admin)
	for _, q := range s.Queues {
		sum(&t.io, q)
	}
}

func sum(t *queue.Stats, s queue.Stats) {
	t.Commands += s.Commands
	t.Errors += s.Errors
	t.BytesIn += s.BytesIn
	t.BytesOut += s.BytesOut
	t.Syscalls += s.Syscalls
	t.Sleeps += s.Sleeps
	t.DataErrors += s.DataErrors
}

func (c *connections) attach(sub *nvmetcp.Subsystem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live = append(c.live, sub)
}

func (c *connections) detach(sub *nvmetcp.Subsystem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.live {
		if c.live[i] == sub {
			c.live = append(c.live[:i], c.live[i+1:]...)
			break
		}
	}
	c.gone.add(sub.Stats())
}

// queueMetrics are those of queues, each with the label queue: admin, or io for all I/O queues together.
var queueMetrics = []struct {
	desc *prometheus.Desc
	of   func(s *queue.Stats) uint64
}{
	{desc("nvstage_queue_commands_total", "Commands completed.", "queue"), func(s *queue.Stats) uint64 { return s.Commands }},
	{desc("nvstage_queue_errors_total", "Commands completed with an error.", "queue"), func(s *queue.Stats) uint64 { return s.Errors }},
	{desc("nvstage_queue_received_bytes_total", "Bytes from sockets, headers included.", "queue"), func(s *queue.Stats) uint64 { return s.BytesIn }},
	{desc("nvstage_queue_sent_bytes_total", "Bytes to sockets, headers included.", "queue"), func(s *queue.Stats) uint64 { return s.BytesOut }},
	{desc("nvstage_queue_syscalls_total", "System calls of the driver.", "queue"), func(s *queue.Stats) uint64 { return s.Syscalls }},
	{desc("nvstage_queue_sleeps_total", "Times that a queue's thread waited in the kernel.", "queue"), func(s *queue.Stats) uint64 { return s.Sleeps }},
	{desc("nvstage_queue_digest_errors_total", "Data digest errors.", "queue"), func(s *queue.Stats) uint64 { return s.DataErrors }},
}

var (
	descUp      = desc("nvstage_controllers_connected", "Controllers that this server is connected to: one while a load runs.")
	descLost    = desc("nvstage_controllers_lost", "Controllers whose connection is lost and not yet given up.")
	descRetries = desc("nvstage_retries_total", "Commands that were sent again.")
	descAlive   = desc("nvstage_keep_alive_rtt_seconds", "Round trip of the latest Keep Alive, 0 before the first.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (c *connections) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *connections) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, up, lost := c.gone, 0, 0
	for _, sub := range c.live {
		s := sub.Stats()
		all.add(s)
		if s.KeepAliveRTT > 0 {
			c.alive = s.KeepAliveRTT
		}
		if sub.Err() == nil {
			up++
		} else {
			lost++
		}
	}
	for _, m := range queueMetrics {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.CounterValue, float64(m.of(&all.admin)), "admin")
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.CounterValue, float64(m.of(&all.io)), "io")
	}
	ch <- prometheus.MustNewConstMetric(descRetries, prometheus.CounterValue, float64(all.retries))
	ch <- prometheus.MustNewConstMetric(descUp, prometheus.GaugeValue, float64(up))
	ch <- prometheus.MustNewConstMetric(descLost, prometheus.GaugeValue, float64(lost))
	ch <- prometheus.MustNewConstMetric(descAlive, prometheus.GaugeValue, c.alive.Seconds())
}
