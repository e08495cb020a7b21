package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// progress follows the loads: server-sent events, https://html.spec.whatwg.org/multipage/server-sent-events.html, each with the status as JSON.
// An event is called progress, or what the load came to: done, failed, cancelled (or idle before the first one). The stream goes on with the next
// load, until the client goes or the server shuts down. A client that is slow misses events, but never the latest: when the number of the load
// is higher, the one before has ended. One that accepts application/json gets the present status instead.
func (s *server) progress(w http.ResponseWriter, r *http.Request) error {
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		now, _ := s.loads.status()
		return writeJSON(w, http.StatusOK, now)
	}
	select {
	case s.watchers <- struct{}{}:
		defer func() { <-s.watchers }()
	default:
		return &problem{http.StatusServiceUnavailable, fmt.Sprintf("%d clients follow the load already", cap(s.watchers)), "ask once, with Accept: application/json"}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache, no-transform")
	w.Header().Set("X-Accel-Buffering", "no") // nginx
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	conn := http.NewResponseController(w)
	// send returns whether the client is still there. The limit for an answer as a whole becomes one for each event.
	send := func(text string) bool {
		_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, err := w.Write([]byte(text))
		return err == nil && conn.Flush() == nil
	}
	beat := time.NewTicker(s.heartbeat)
	defer beat.Stop()
	draining := s.draining
	for {
		now, changed := s.loads.status()
		text, err := now.event()
		if err != nil || !send(text) {
			return err
		}
		if draining == nil && !now.running() {
			return nil
		}
		for waiting := true; waiting; {
			select {
			case <-changed:
				waiting = false
			case <-beat.C:
				if !send(": still here\n\n") {
					return nil
				}
			case <-r.Context().Done():
				return nil
			case <-draining:
				draining = nil // a load that runs is being cancelled: that is the last event
				select {
				case <-changed: // also one that has begun since, of which the client has not heard
					waiting = false
				default:
					if !now.running() {
						return nil
					}
				}
			}
		}
	}
}

// event is the status as a server-sent event.
func (st *status) event() (string, error) {
	name := string(st.State)
	if st.running() {
		name = "progress"
	}
	data, err := json.Marshal(st)
	return fmt.Sprintf("event: %s\ndata: %s\n\n", name, data), err
}

func (st *status) running() bool { return st.State == connecting || st.State == loading }
