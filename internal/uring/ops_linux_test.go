package uring

import (
	"bytes"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestSendRecv(t *testing.T) {
	pairs := map[string]func(*testing.T) (int, int){"socketpair": socketpair, "tcp": tcpPair}
	for name, pair := range pairs {
		for _, fixed := range []bool{false, true} {
			t.Run(name+map[bool]string{true: "/fixed"}[fixed], func(t *testing.T) {
				r := newRing(t, Config{Entries: 8})
				a, b := pair(t)
				if fixed {
					require.NoError(t, r.RegisterFiles([]int{a, b}))
					a, b = 0, 1
				}
				testSendRecv(t, r, a, b, fixed)
			})
		}
	}
}

// testSendRecv moves bytes from a to b, first with the receive armed before they are sent, then with the bytes there.
func testSendRecv(t *testing.T, r *Ring, a, b int, fixed bool) {
	out := []byte("a capsule and its data")
	in := bytes.Repeat([]byte{0xa5}, 64)
	n := len(out)

	require.True(t, r.PrepRecv(b, fixed, ptr(in[1:]), n, unix.MSG_WAITALL, 1))
	require.NoError(t, r.Enter(0, 0))
	_, ok := r.Next()
	require.False(t, ok, "the receive must stay armed")
	require.True(t, r.PrepSend(a, fixed, ptr(out), n, 0, 2))
	got := collect(t, r, 2)
	require.EqualValues(t, n, got[1].Res)
	require.EqualValues(t, n, got[2].Res)
	require.Equal(t, "\xa5"+string(out)+strings.Repeat("\xa5", 63-n), string(in))

	require.True(t, r.PrepSend(a, fixed, ptr(out), 5, 0, 3))
	require.EqualValues(t, 5, one(t, r, 3).Res)
	require.True(t, r.PrepRecv(b, fixed, ptr(in), len(in), 0, 4))
	require.EqualValues(t, 5, one(t, r, 4).Res)
	require.Equal(t, "a cap", string(in[:5]))
}

func TestMsg(t *testing.T) {
	r := newRing(t, Config{Entries: 8})
	a, b := tcpPair(t)
	iov := func(parts ...[]byte) *Msghdr {
		v := make([]unix.Iovec, len(parts))
		for i, p := range parts {
			v[i].Base = unsafe.SliceData(p)
			v[i].SetLen(len(p))
		}
		m := &Msghdr{Iov: &v[0]}
		m.SetIovlen(len(v))
		return m
	}
	head, data := []byte("header"), []byte("payload of the command")
	in := [][]byte{make([]byte, 3), make([]byte, 20), make([]byte, 9)}
	n := len(head) + len(data)
	require.True(t, r.PrepSendmsg(a, false, iov(head, data), 0, 1))
	require.True(t, r.PrepRecvmsg(b, false, iov(in...), unix.MSG_WAITALL, 2))
	// WAITALL asks for 32 bytes and 28 come: the end of the stream makes the rest.
	require.NoError(t, r.Enter(1, patience))
	require.NoError(t, unix.Shutdown(a, unix.SHUT_WR))
	got := collect(t, r, 2)
	require.EqualValues(t, n, got[1].Res)
	require.EqualValues(t, n, got[2].Res)
	require.Equal(t, "headerpayload of the command\x00\x00\x00\x00", string(bytes.Join(in, nil)))
}

// One enter that finds nothing: what a spinning poller does.
func TestDontWait(t *testing.T) {
	r := newRing(t, Config{Entries: 8})
	a, b := tcpPair(t)
	require.NoError(t, r.RegisterFiles([]int{a}))
	buf := make([]byte, 16)
	require.True(t, r.PrepRecv(0, true, ptr(buf), len(buf), unix.MSG_DONTWAIT, 7))
	require.NoError(t, r.Enter(0, 0))
	c, ok := r.Next()
	require.True(t, ok)
	require.Equal(t, CQE{UserData: 7, Res: -int32(unix.EAGAIN)}, c)

	_, err := unix.Write(b, []byte("here"))
	require.NoError(t, err)
	require.True(t, r.PrepPoll(a, false, unix.POLLIN, false, 8)) // loopback or not, the bytes are there now
	require.NotZero(t, one(t, r, 8).Res&unix.POLLIN)
	require.True(t, r.PrepRecv(0, true, ptr(buf), len(buf), unix.MSG_DONTWAIT, 9))
	require.NoError(t, r.Enter(0, 0))
	c, ok = r.Next()
	require.True(t, ok)
	require.EqualValues(t, 4, c.Res)
}

// What the package documentation says of descriptors with O_NONBLOCK: package net's are such.
func TestNonblocking(t *testing.T) {
	r := newRing(t, Config{Entries: 8})
	a, b := tcpPair(t)
	ev := eventfd(t)
	require.NoError(t, unix.SetNonblock(a, true))
	require.NoError(t, unix.SetNonblock(ev, true))
	buf := make([]byte, 12)
	require.True(t, r.PrepRecv(a, false, ptr(buf), 4, 0, 1))
	require.True(t, r.PrepRead(ev, false, ptr(buf[4:]), 8, 2))
	require.NoError(t, r.Enter(0, 0))
	require.Zero(t, r.cqTail.Load()-r.cqPos, "they must stay armed")
	_, err := unix.Write(b, []byte("data"))
	require.NoError(t, err)
	require.EqualValues(t, 4, one(t, r, 1).Res)
	signal(t, ev)
	require.EqualValues(t, 8, one(t, r, 2).Res)
}

func TestPollWake(t *testing.T) {
	r := newRing(t, Config{Entries: 8})
	ev := eventfd(t)
	buf := make([]byte, 8)
	require.True(t, r.PrepPoll(ev, false, unix.POLLIN, true, 1))
	for range 3 {
		go signal(t, ev)
		c := one(t, r, 1)
		require.NotZero(t, c.Res&unix.POLLIN)
		require.NotZero(t, c.Flags&CQEMore, "a multishot poll stays armed")
		require.Equal(t, 1, r.InFlight())
		_, err := unix.Read(ev, buf)
		require.NoError(t, err)
	}
	require.True(t, r.PrepCancel(1, 2))
	got := collect(t, r, 2)
	require.Equal(t, -int32(unix.ECANCELED), got[1].Res)
	require.Zero(t, got[1].Flags&CQEMore)
	require.Zero(t, got[2].Res)
	require.Zero(t, r.InFlight())

	require.True(t, r.PrepPoll(ev, false, unix.POLLOUT, false, 3))
	require.EqualValues(t, unix.POLLOUT, one(t, r, 3).Res)
}

func TestReadWake(t *testing.T) {
	r := newRing(t, Config{Entries: 8})
	ev := eventfd(t)
	buf := make([]byte, 8)
	for range 3 {
		clear(buf)
		require.True(t, r.PrepRead(ev, false, ptr(buf), 8, 1))
		require.NoError(t, r.Enter(0, 0))
		require.Equal(t, 1, r.InFlight())
		go signal(t, ev)
		require.EqualValues(t, 8, one(t, r, 1).Res)
		require.Equal(t, []byte{0: 1, 7: 1}, buf)
	}
}

func TestCancel(t *testing.T) {
	r := newRing(t, Config{Entries: 8})
	a, _ := socketpair(t)
	buf := make([]byte, 4)
	require.True(t, r.PrepCancel(1, 2))
	require.Equal(t, -int32(unix.ENOENT), one(t, r, 2).Res)
	require.True(t, r.PrepRecv(a, false, ptr(buf), 4, 0, 1))
	require.True(t, r.PrepRecv(a, false, ptr(buf), 4, 0, 3))
	require.True(t, r.PrepCancel(1, 2))
	got := collect(t, r, 2)
	require.Equal(t, -int32(unix.ECANCELED), got[1].Res)
	require.Zero(t, got[2].Res)
	require.Equal(t, 1, r.InFlight())
}

func TestNegativeLength(t *testing.T) {
	r := newRing(t, Config{Entries: 8})
	buf := make([]byte, 4)
	require.Panics(t, func() { r.PrepRecv(0, false, ptr(buf), -1, 0, 1) })
}

// A turn of a poller allocates nothing.
func TestAllocs(t *testing.T) {
	r := newRing(t, Config{Entries: 8})
	a, b := socketpair(t)
	require.NoError(t, r.RegisterFiles([]int{a, b}))
	out, in := make([]byte, 64), make([]byte, 64)
	iov := &unix.Iovec{Base: &out[0]}
	iov.SetLen(64)
	msg := &Msghdr{Iov: iov}
	msg.SetIovlen(1)
	bad := 0
	allocs := testing.AllocsPerRun(200, func() {
		r.PrepSendmsg(0, true, msg, 0, 1)
		r.PrepRecv(1, true, ptr(in), 64, unix.MSG_WAITALL, 2)
		r.PrepPoll(0, true, unix.POLLOUT, false, 3)
		r.PrepCancel(99, 4)
		for n := 0; n < 4; {
			if r.Enter(4-n, patience) != nil {
				bad++
				return
			}
			for c, ok := r.Next(); ok; c, ok = r.Next() {
				if (c.UserData == 1 || c.UserData == 2) && c.Res != 64 {
					bad++
				}
				n++
			}
		}
	})
	require.Zero(t, allocs)
	require.Zero(t, bad)
}

func BenchmarkNop(b *testing.B) {
	r := newRing(b, Config{Entries: 8})
	for b.Loop() {
		nop(r, 1)
		if err := r.Enter(0, 0); err != nil {
			b.Fatal(err)
		}
		if _, ok := r.Next(); !ok {
			b.Fatal("no completion")
		}
	}
}
