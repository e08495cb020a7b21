package queue

import (
	"context"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/internal/uring"
)

// eachDriver runs f with each driver, connected to peer.
func eachDriver(t *testing.T, f func(t *testing.T, d driver, peer net.Conn)) {
	for _, kind := range []Driver{DriverEpoll, DriverConn, DriverURing} {
		t.Run(string(kind), func(t *testing.T) {
			if err := uring.Probe(); kind == DriverURing && err != nil {
				t.Skip("NOT TESTED with io_uring:", err)
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			host, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			peer, err := l.Accept()
			require.NoError(t, err)
			defer peer.Close()
			o, err := open(host, &Config{Driver: kind})
			require.NoError(t, err)
			defer func() { require.NoError(t, o.close()) }()
			f(t, o.driver, peer)
		})
	}
}

const long = 20 * time.Second // what nothing takes

// A wait lasts for as long as there is no reason to end it, and ends when there is one. What ended one
// wait does not end the next.
func TestDriverWait(t *testing.T) {
	eachDriver(t, func(t *testing.T, d driver, peer net.Conn) {
		buf := make([]byte, 1000)
		exchange := func() (n int) {
			_, n, err := d.exchange(nil, [][]byte{buf})
			require.NoError(t, err)
			return n
		}
		lasts := func(write bool, what string) {
			t.Helper()
			for range 3 { // once or twice it may end for no reason
				start := time.Now()
				require.NoError(t, d.wait(write, 30*time.Millisecond))
				if time.Since(start) >= 30*time.Millisecond {
					require.Less(t, time.Since(start), long/2)
					return
				}
				require.Zero(t, exchange())
			}
			require.FailNow(t, "the wait does not last "+what)
		}
		ends := func(write bool, limit time.Duration, what string, cause func()) {
			t.Helper()
			start := time.Now()
			go func() {
				time.Sleep(10 * time.Millisecond)
				cause()
			}()
			require.NoError(t, d.wait(write, limit))
			require.Less(t, time.Since(start), long/2, "the wait did not end by "+what)
		}
		require.Zero(t, exchange())
		lasts(false, "at first")
		start := time.Now()
		for range 3 {
			require.NoError(t, d.wait(false, 700*time.Microsecond))
		}
		require.GreaterOrEqual(t, time.Since(start), 3*700*time.Microsecond, "a short wait does not last")
		for _, limit := range []time.Duration{-1, long} {
			for range 3 {
				ends(false, limit, "a wake-up", d.wake)
				require.Zero(t, exchange())
				lasts(false, "after a wake-up")
				ends(false, limit, "bytes", func() { peer.Write(make([]byte, 10)) })
				for n := 0; n < 10; {
					n += exchange()
				}
				lasts(false, "after bytes")
			}
		}
		d.wake() // before the wait
		ends(false, long, "an earlier wake-up", func() {})
		require.Zero(t, exchange())
		lasts(false, "after an earlier wake-up")
	})
}

// A wait for room in a full socket ends when the peer reads, and a writable socket alone ends none.
func TestDriverWaitToSend(t *testing.T) {
	eachDriver(t, func(t *testing.T, d driver, peer net.Conn) {
		data, in := make([]byte, 16<<20), make([]byte, 1000)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 2 {
			left := data
			turn := func() int {
				sent, n, err := d.exchange([][]byte{left}, [][]byte{in})
				require.NoError(t, err)
				require.Zero(t, n)
				left = left[sent:]
				return sent
			}
			for last := time.Now(); time.Since(last) < 30*time.Millisecond; {
				if turn() > 0 {
					last = time.Now()
				}
			}
			require.NotEmpty(t, left, "the socket takes 16 MiB")
			go func() {
				io.CopyN(io.Discard, peer, int64(len(data)))
				cancel()
			}()
			for start := time.Now(); len(left) > 0; {
				if turn() == 0 {
					require.NoError(t, d.wait(true, long))
				}
				require.Less(t, time.Since(start), long/2)
			}
			start := time.Now()
			for range 3 {
				require.NoError(t, d.wait(false, 30*time.Millisecond))
			}
			require.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond)
		}
		<-ctx.Done()
	})
}

// A closed connection is io.EOF, after its last bytes; one that was reset is an error.
func TestDriverEnd(t *testing.T) {
	for _, reset := range []bool{false, true} {
		eachDriver(t, func(t *testing.T, d driver, peer net.Conn) {
			peer.Write(make([]byte, 10))
			time.Sleep(10 * time.Millisecond) // the bytes are there
			if reset {
				peer.(*net.TCPConn).SetLinger(0)
			}
			peer.Close()
			total := 0
			for {
				_, n, err := d.exchange(nil, [][]byte{make([]byte, 3), make([]byte, 3)})
				total += n
				if n == 0 && err != nil {
					require.Equal(t, !reset, err == io.EOF, err)
					break
				}
			}
			require.Equal(t, 10, total)
		})
	}
}

// A connection that takes nothing any more is an error also while nothing is received.
func TestDriverCannotSend(t *testing.T) {
	eachDriver(t, func(t *testing.T, d driver, _ net.Conn) {
		switch d := d.(type) {
		case *connDriver:
			d.conn.(*net.TCPConn).CloseWrite()
		case *epollDriver:
			unix.Shutdown(d.fd, unix.SHUT_WR)
		case *uringDriver:
			unix.Shutdown(d.fd, unix.SHUT_WR)
		}
		var err error
		for start := time.Now(); err == nil && time.Since(start) < long; { // an io_uring belongs to this thread
			_, _, err = d.exchange([][]byte{{1}}, [][]byte{{0}})
		}
		require.ErrorIs(t, err, unix.EPIPE)
	})
}
