package queue

import (
	"bytes"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// What arrives between two slices of an exchange must not leave a hole in the first: the connection is fed
// bit by bit while it is emptied, and the bytes received must be the stream without gaps.
func TestConnDriverLeavesNoHoles(t *testing.T) {
	host, ctrl := net.Pipe()
	d := newConnDriver(host)
	defer d.close()
	const total = 1 << 20
	go func() {
		b := make([]byte, 61)
		for sent := 0; sent < total; {
			n := min(len(b), total-sent)
			for i := range n {
				b[i] = byte((sent + i) % 251)
			}
			ctrl.Write(b[:n])
			sent += n
		}
	}()
	want := make([]byte, total)
	for i := range want {
		want[i] = byte(i % 251)
	}
	got := make([]byte, total)
	for off := 0; off < total; {
		vec := make([][]byte, 0, 100)
		for o := off; o < total && len(vec) < cap(vec); o += 100 {
			vec = append(vec, got[o:min(o+100, total)])
		}
		_, n, err := d.exchange(nil, vec)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want[off:off+n], got[off:off+n]), "a hole before byte %d", off+n)
		off += n
		if n == 0 {
			require.NoError(t, d.wait(false, -1))
		}
	}
}
