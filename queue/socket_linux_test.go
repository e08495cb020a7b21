package queue_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/queue"
)

// Control shows the queue's own socket while there is one, and no descriptor afterwards, which may be another file's.
func TestControl(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, _ := connect(t, d, opts{})
		var sa unix.Sockaddr
		var err error
		require.NoError(t, q.Control(func(fd uintptr) { sa, err = unix.Getsockname(int(fd)) }))
		require.NoError(t, err)
		in := sa.(*unix.SockaddrInet4)
		require.Equal(t, q.Info().LocalAddr, netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port)).String())
		require.NoError(t, q.Close())
		require.ErrorIs(t, q.Control(func(uintptr) { t.Error("called after the end") }), queue.ErrClosed)
	})
}

func TestControlWithoutSocket(t *testing.T) {
	host, ctrl := net.Pipe()
	resp := pdu.ICResp{MAXH2CDATA: 128 << 10}
	go func() {
		b := make([]byte, pdu.TypeICReq.HeaderLen())
		ctrl.Read(b)
		ctrl.Write(resp.Append(nil))
	}()
	q, err := queue.New(t.Context(), host, queue.Config{})
	require.NoError(t, err)
	defer q.Close()
	defer ctrl.Close()
	require.ErrorIs(t, q.Control(func(uintptr) { t.Error("called") }), errors.ErrUnsupported)
}
