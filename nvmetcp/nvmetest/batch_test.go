package nvmetest

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nothing is sent after the end, although it was gathered before the end was.
func TestNothingAfterTheEnd(t *testing.T) {
	c := &Conn{cur: &batch{}, spare: &batch{}}
	c.cur.data([]byte("abc"))
	c.cur.close(sendNoMore)
	c.cur.data([]byte("late"))
	c.cur.data(make([]byte, 2*inlineCopy))
	c.cur.close(closeRST)
	b := c.take()
	require.Equal(t, "abc", string(bytes.Join(b.rest, nil)))
	require.Equal(t, sendNoMore, b.end)
}
