package staging

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"
)

// poison is what free buffers are filled with in debug mode.
const poison = 0xdb

var poisonPage = bytes.Repeat([]byte{poison}, bufferAlign)

// reported is how many buffers an error describes one by one.
const reported = 4

// poolDebug is what a pool knows in debug mode.
type poolDebug struct {
	pool *Pool

	mu     sync.Mutex
	owners []owner // by buffer
}

// owner is the last owner of a buffer, or the one of this moment: then it was not released since it was taken.
type owner struct{ taken, released trace }

// trace is a moment and the stack of the goroutine that was there.
type trace struct {
	at  time.Time
	pcs [24]uintptr
	n   int
}

func newPoolDebug(ctx context.Context, p *Pool) (*poolDebug, error) {
	for i := range p.info.Buffers {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		fill(p.at(i))
	}
	return &poolDebug{pool: p, owners: make([]owner, p.info.Buffers)}, nil
}

func fill(mem []byte) {
	for len(mem) > 0 {
		mem = mem[copy(mem, poisonPage):]
	}
}

// taken notes the new owner, and panics if somebody wrote to the buffer while it was free. Then nobody owns it any more.
func (d *poolDebug) taken(b Buffer) {
	if err := d.check(int(b.index)); err != nil {
		panic("staging: " + err.Error())
	}
	d.mu.Lock()
	d.owners[b.index].taken.set()
	d.mu.Unlock()
}

// released notes the end of the ownership and fills the buffer. The handle is not valid any more, and no new one exists.
func (d *poolDebug) released(b Buffer) {
	d.mu.Lock()
	d.owners[b.index].released.set()
	d.mu.Unlock()
	fill(d.pool.at(int(b.index)))
}

// check is an error if free buffer i was written to.
func (d *poolDebug) check(i int) error {
	mem := d.pool.at(i)
	clean := 0
	for clean < len(mem) && bytes.Equal(mem[clean:clean+bufferAlign], poisonPage) {
		clean += bufferAlign
	}
	if clean == len(mem) {
		return nil
	}
	first := clean
	for mem[first] == poison {
		first++
	}
	last := len(mem) - 1
	for mem[last] == poison {
		last--
	}
	return fmt.Errorf("buffer %d was written to while it was free, at offset %d (byte %#02x), up to offset %d%s", i, first, mem[first], last, d.history(i))
}

// checkFree checks all buffers. All of them are free.
func (d *poolDebug) checkFree() error {
	var errs []error
	for i := range d.pool.info.Buffers {
		if err := d.check(i); err != nil {
			errs = append(errs, err)
		}
		if len(errs) == reported {
			break
		}
	}
	return errors.Join(errs...)
}

// held tells who took the buffers that are out. The caller holds the pool's mu.
func (d *poolDebug) held() string {
	var s strings.Builder
	n := 0
	for i := range d.pool.gens {
		if d.pool.gens[i].Load()%2 == 0 {
			continue
		}
		if n++; n <= reported {
			d.mu.Lock()
			t := d.owners[i].taken
			d.mu.Unlock()
			t.write(&s, i, "taken")
		}
	}
	if n > reported {
		fmt.Fprintf(&s, "\nand %d more", n-reported)
	}
	return s.String()
}

// history tells who took and who released buffer i last, in lines that begin with a line break.
func (d *poolDebug) history(i int) string {
	d.mu.Lock()
	o := d.owners[i]
	d.mu.Unlock()
	var s strings.Builder
	o.taken.write(&s, i, "taken")
	o.released.write(&s, i, "released")
	return s.String()
}

// set notes the caller of the method of Pool or Buffer that has called the method of poolDebug that calls it.
func (t *trace) set() {
	t.at = time.Now()
	t.n = runtime.Callers(4, t.pcs[:])
}

func (t *trace) write(s *strings.Builder, i int, what string) {
	if t.n == 0 {
		fmt.Fprintf(s, "\nbuffer %d was never %s", i, what)
		return
	}
	fmt.Fprintf(s, "\nbuffer %d was %s %v ago by", i, what, time.Since(t.at).Round(time.Microsecond))
	frames := runtime.CallersFrames(t.pcs[:t.n])
	for {
		f, more := frames.Next()
		fmt.Fprintf(s, "\n\t%s\n\t\t%s:%d", f.Function, f.File, f.Line)
		if !more {
			return
		}
	}
}
