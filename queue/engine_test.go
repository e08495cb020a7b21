package queue

import (
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// fakeDriver is a connection whose every move the test decides. All is called on the engine's goroutine.
type fakeDriver struct {
	take func(send [][]byte) (int, error) // how many bytes the socket takes; nil: all
	give func(recv [][]byte) (int, error) // what is received; nil: nothing, ever
	sent []byte                           // what was taken
	only bool                             // the present exchange does not receive

	slept func() // called in wait
	lazy  bool   // says what was taken later than the controller sees it
	given int    // what inflight says
	wakes int    // calls of wake, while the engine does not run
}

func (d *fakeDriver) exchange(send, recv [][]byte) (sent, received int, err error) {
	var sendErr, recvErr error
	d.only = len(recv) == 0
	if len(send) > 0 {
		sent = size(send)
		if d.take != nil {
			sent, sendErr = d.take(send)
		}
		left := sent
		for _, b := range send {
			b = b[:min(len(b), left)]
			d.sent = append(d.sent, b...)
			left -= len(b)
		}
	}
	if d.give != nil {
		received, recvErr = d.give(recv)
	}
	if sendErr != nil {
		return sent, received, sendErr
	}
	return sent, received, recvErr
}

func (d *fakeDriver) inflight() int { return d.given }
func (d *fakeDriver) wake()         { d.wakes++ }
func (d *fakeDriver) close() error  { return nil }

func (d *fakeDriver) wait(bool, time.Duration) error {
	if d.slept != nil {
		d.slept()
	}
	time.Sleep(10 * time.Microsecond)
	return nil
}

func (d *fakeDriver) syscalls() uint64 { return 0 }

// engineOn makes a queue on d without a connection, not running yet.
func engineOn(t *testing.T, d *fakeDriver, cfg Config) *engine {
	t.Helper()
	require.NoError(t, cfg.setDefaults())
	q := &Queue{cfg: cfg, done: make(chan struct{}), drv: d}
	q.info.MAXH2CDATA = 64 << 10
	q.info.Digests = cfg.Digests
	return newEngine(q, opened{driver: d, lazy: d.lazy})
}

// run starts the engine; the test's end closes it.
func (e *engine) run(t *testing.T) *Queue {
	go func() {
		e.loop()
		close(e.q.done)
	}()
	t.Cleanup(func() { e.q.Close() })
	return e.q
}

func within(t *testing.T, d time.Duration, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(d):
		require.FailNow(t, what)
	}
}

// answer is a CapsuleResp with status 0.
func answer(cid uint16) []byte {
	var p pdu.CapsuleResp
	cqe := nvme.CQE{CID: cid}
	cqe.Append(p.CQE[:0])
	return p.Append(nil, pdu.Layout{})
}

// A controller may answer what it has never read, until the send queue is full although no command is
// outstanding. That it takes nothing ends the queue in time, and with it the commands that wait for room.
func TestStuckSend(t *testing.T) {
	d := &fakeDriver{take: func([][]byte) (int, error) { return 0, nil }}
	e := engineOn(t, d, Config{Depth: 1, CommandTimeout: 200 * time.Millisecond})
	answered := 0
	d.give = func(recv [][]byte) (int, error) {
		if e.used() == 0 {
			return 0, nil
		}
		answered++
		return copy(recv[0], answer(e.all[0].cid)), nil
	}
	q := e.run(t)
	done := make(chan struct{})
	c := Command{SQE: nvme.Flush(1)}
	c.Done = func(*Command) {
		if c.Err != nil {
			close(done)
			return
		}
		q.Submit(&c)
	}
	q.Submit(&c)
	within(t, 5*time.Second, done, "a command waits for ever")
	require.ErrorIs(t, c.Err, ErrTimeout)
	require.ErrorIs(t, c.Err, ErrPathLost)
	require.Greater(t, answered, 100)
}

// What the controller said before it hung up is heard also when it is the send that fails first. F38: it
// may have said why.
func TestF38ReceiveAfterSendError(t *testing.T) {
	d := &fakeDriver{take: func([][]byte) (int, error) { return 0, syscall.ECONNRESET }}
	e := engineOn(t, d, Config{})
	term := pdu.TermReq{Type: pdu.TypeC2HTermReq, FES: pdu.FESOutOfRange}
	stream := append(answer(1<<5), term.Append(nil)...)
	d.give = func(recv [][]byte) (int, error) { // in pieces
		n := copy(recv[0][:10], stream)
		stream = stream[n:]
		return n, nil
	}
	done := make(chan struct{}, 2)
	var cmds [2]Command
	for i := range cmds {
		cmds[i].SQE = nvme.Flush(1)
		cmds[i].Done = func(*Command) { done <- struct{}{} }
	}
	e.q.Submit(&cmds[0], &cmds[1])
	e.run(t)
	within(t, 5*time.Second, done, "the first command does not complete")
	within(t, 5*time.Second, done, "the second command does not complete")
	require.NoError(t, cmds[0].Err, "it was answered")
	require.ErrorIs(t, cmds[1].Err, ErrTerminated)
}

// Sends are held back while a large payload keeps coming, but not for long, and not otherwise: neither while what comes
// is small nor where the controller would run out of commands.
func TestHoldBack(t *testing.T) {
	const large, small = 1 << 30, 32 << 10
	full := func(recv [][]byte) int { return size(recv) }
	short := func([][]byte) int { return 100 }
	for name, arrives := range map[string]func([][]byte) int{"whole buffers": full, "pieces": short} {
		taken := takenInTurn(t, large, 40, arrives)
		require.Greater(t, taken, 5, "%s: commands go out together", name)
		require.Less(t, taken, 30, "%s: a command waits for the end of somebody else's data", name)
		require.LessOrEqual(t, takenInTurn(t, large, 0, arrives), 4, name)
	}
	require.LessOrEqual(t, takenInTurn(t, small, 40, short), 4)
}

// takenInTurn is when a Flush is sent that is submitted in turn 3, while a read of n bytes arrives and others wait.
func takenInTurn(t *testing.T, n, others int, arrives func(recv [][]byte) int) int {
	d := &fakeDriver{}
	e := engineOn(t, d, Config{Depth: 100})
	cmds := make([]Command, 1+others)
	for i := range cmds {
		cmds[i].SQE, cmds[i].Done = nvme.Flush(1), func(*Command) {}
		e.q.Submit(&cmds[i])
	}
	c := &cmds[0]
	c.SQE = nvme.Read(1, 0, 0)
	part := make([]byte, 4<<10) // small, so that a turn does not get far
	for range n / len(part) {
		c.Data = append(c.Data, part)
	}
	h := pdu.Data{Type: pdu.TypeC2HData, CCCID: 1 << 7, DATAL: uint32(n), Flags: pdu.FlagLast}
	stream := h.AppendHeader(nil, pdu.Layout{})
	turns := 0
	var flush Command
	flush.SQE, flush.Done = nvme.Flush(1), func(*Command) {}
	d.give = func(recv [][]byte) (int, error) {
		if turns++; turns == 1 {
			return copy(recv[0], stream), nil
		}
		if turns == 3 {
			e.q.Submit(&flush)
		}
		if turns < 3 || turns > 100 {
			return 0, nil
		}
		return arrives(recv), nil
	}
	taken := 0
	d.take = func(send [][]byte) (int, error) {
		if turns > 2 && taken == 0 {
			taken = turns
		}
		return size(send), nil
	}
	q := e.run(t)
	want := uint64(len(cmds)+1) * 72
	require.Eventually(t, func() bool { return q.Stats().BytesOut == want }, 5*time.Second, time.Millisecond)
	q.Close()
	return taken
}

// A queue that was idle for longer than the timeout is not taken for stuck when it sends again.
func TestIdleIsNotStuck(t *testing.T) {
	d := &fakeDriver{}
	const timeout = 2 * time.Second // which a pause of the machine does not reach
	e := engineOn(t, d, Config{CommandTimeout: timeout})
	var start time.Time
	d.take = func(send [][]byte) (int, error) { // takes its time, but not too much
		if start.IsZero() {
			start = time.Now()
		}
		if time.Since(start) < 40*time.Millisecond {
			return 0, nil
		}
		start = time.Time{}
		return size(send), nil
	}
	answered := uint16(0)
	d.give = func(recv [][]byte) (int, error) {
		if len(d.sent) < 72 {
			return 0, nil
		}
		d.sent = d.sent[:0]
		answered++
		return copy(recv[0], answer(answered<<5)), nil
	}
	q := e.run(t)
	for _, idle := range []time.Duration{timeout + timeout/4, 0} {
		c := Command{SQE: nvme.Flush(1)}
		require.NoError(t, q.Do(t.Context(), &c))
		time.Sleep(idle)
	}
}

// An idle queue looks at the socket for as long as Spin says before it sleeps, where that is cheap.
func TestSpin(t *testing.T) {
	for _, tc := range []struct {
		spin   time.Duration
		cheap  bool
		lo, hi time.Duration
	}{
		{150 * time.Millisecond, true, 149 * time.Millisecond, 5 * time.Second},
		{-1, true, 0, 100 * time.Millisecond},
		{150 * time.Millisecond, false, 0, 100 * time.Millisecond},
	} {
		d := &fakeDriver{}
		e := engineOn(t, d, Config{Spin: tc.spin})
		e.drv.spins = tc.cheap
		var start, slept time.Time
		d.give = func([][]byte) (int, error) {
			if start.IsZero() {
				start = time.Now()
			}
			return 0, nil
		}
		d.slept = func() {
			if slept.IsZero() {
				slept = time.Now()
			}
		}
		q := e.run(t)
		require.Eventually(t, func() bool { return q.Stats().Sleeps > 1 }, 5*time.Second, time.Millisecond)
		q.Close()
		require.GreaterOrEqual(t, slept.Sub(start), tc.lo)
		require.Less(t, slept.Sub(start), tc.hi)
	}
}

// What comes while the queue makes up its mind to sleep keeps it awake, and what comes later finds it asleep.
func TestSleep(t *testing.T) {
	d := &fakeDriver{}
	e := engineOn(t, d, Config{})
	slept := 0
	d.slept = func() {
		slept++
		require.True(t, e.q.sleeping.Load(), "nobody will wake it")
	}
	e.sleep()
	require.Equal(t, 1, slept)
	require.False(t, e.q.sleeping.Load(), "somebody will wake it for nothing")
	e.q.Wake()
	e.sleep()
	require.Equal(t, 1, slept)
	e.takeIn()
	e.q.Submit(&Command{SQE: nvme.Flush(1), Done: func(*Command) {}})
	e.sleep()
	require.Equal(t, 1, slept)
	e.takeIn()
	e.sleep()
	require.Equal(t, 2, slept)
	require.Zero(t, d.wakes)
	d.slept = func() { // all of these come while it sleeps
		e.q.Submit(&Command{SQE: nvme.Flush(1), Done: func(*Command) {}})
		e.q.Submit(&Command{SQE: nvme.Flush(1), Done: func(*Command) {}})
		e.q.Wake()
	}
	e.sleep()
	require.Equal(t, 1, d.wakes)
}

type quietFeed struct{ closed []error }

func (f *quietFeed) Next() *Command    { return nil }
func (f *quietFeed) Complete(*Command) {}
func (f *quietFeed) Closed(err error)  { f.closed = append(f.closed, err) }

// A feed that is attached in the last moment is closed, and so is one that is detached then.
func TestAttachAtTheEnd(t *testing.T) {
	e := engineOn(t, &fakeDriver{}, Config{})
	var late, leaving, staying quietFeed
	e.q.Attach(&leaving)
	e.q.Attach(&staying)
	e.takeIn()
	e.fatal = ErrTimeout
	e.q.Attach(&late)
	e.q.Detach(&leaving)
	e.finish()
	require.Equal(t, []error{ErrTimeout}, late.closed)
	require.Equal(t, []error{ErrTimeout}, staying.closed)
	require.Equal(t, []error{nil}, leaving.closed)
	e.q.Detach(&staying)
	require.Len(t, staying.closed, 1)
}

// The time in which callers have the processor is no latency of their next command.
func TestLatencyOfNext(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	d := &fakeDriver{}
	e := engineOn(t, d, Config{Depth: 1})
	d.give = func(recv [][]byte) (int, error) {
		if e.used() == 0 {
			return 0, nil
		}
		return copy(recv[0], answer(e.all[0].cid)), nil
	}
	q := e.run(t)
	c := Command{SQE: nvme.Flush(1)}
	require.NoError(t, q.Do(t.Context(), &c))
	var all []time.Duration
	for range 21 {
		for start := time.Now(); time.Since(start) < 9*time.Millisecond; { // busy, but not for so long that it is preempted
		}
		require.NoError(t, q.Do(t.Context(), &c))
		all = append(all, c.Latency())
	}
	slices.Sort(all)
	require.Less(t, all[len(all)/2], 8*time.Millisecond)
}

// A caller whose command has completed runs at once, although the queue goes on looking at the socket and
// there is no other processor.
func TestHandOver(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	d := &fakeDriver{}
	e := engineOn(t, d, Config{Depth: 1, Spin: time.Minute})
	e.drv.spins = true
	d.give = func(recv [][]byte) (int, error) {
		if e.used() == 0 {
			return 0, nil
		}
		return copy(recv[0], answer(e.all[0].cid)), nil
	}
	q := e.run(t)
	c := Command{SQE: nvme.Flush(1)}
	var all []time.Duration
	for range 21 {
		start := time.Now()
		require.NoError(t, q.Do(t.Context(), &c))
		all = append(all, time.Since(start))
	}
	slices.Sort(all)
	require.Less(t, all[len(all)/2], 5*time.Millisecond)
}
