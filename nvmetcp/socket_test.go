package nvmetcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSocketOptionsDefaults(t *testing.T) {
	for want, o := range map[time.Duration]*Options{
		10 * time.Second:      nil,
		time.Second:           {KeepAlive: 100 * time.Millisecond},
		60 * time.Second:      {KeepAlive: 30 * time.Second, CommandTimeout: time.Second},
		30 * time.Second:      {KeepAlive: -1},
		7 * time.Second:       {KeepAlive: -1, CommandTimeout: 7 * time.Second},
		0:                     {KeepAlive: -1, CommandTimeout: -1},
		-1:                    {Socket: SocketOptions{UserTimeout: -1}},
		20 * time.Millisecond: {Socket: SocketOptions{UserTimeout: 20 * time.Millisecond}},
	} {
		r, err := o.resolve()
		require.NoError(t, err)
		require.Equal(t, want, r.Socket.UserTimeout)
	}
}

func TestSocketOptionsRefused(t *testing.T) {
	for want, o := range map[string]Options{
		"Socket.TOS is 256, want four times a DSCP":                {Socket: SocketOptions{TOS: 256}},
		"Socket.TOS is 3, want four times a DSCP":                  {Socket: SocketOptions{TOS: 3}},
		"Socket.TOS is -4":                                         {Socket: SocketOptions{TOS: -4}},
		"Socket.Priority is -1":                                    {Socket: SocketOptions{Priority: -1}},
		"Socket.BusyPoll is -1ns":                                  {Socket: SocketOptions{BusyPoll: -1}},
		"Socket.BusyPoll is 2s":                                    {Socket: SocketOptions{BusyPoll: 2 * time.Second}},
		"Socket.SendBuffer is 67108865, want 0 to 67108864 bytes":  {Socket: SocketOptions{SendBuffer: 64<<20 + 1}},
		"Socket.ReceiveBuffer is -1, want 0 to 67108864 bytes":     {Socket: SocketOptions{ReceiveBuffer: -1}},
		`Options.Pin is "near", want "local", or "" for none`:      {Pin: "near"},
		"nvmetcp: Options.Pin and Options.CPUs exclude each other": {Pin: PinLocal, CPUs: []int{0}},
	} {
		_, err := o.resolve()
		require.ErrorContains(t, err, want)
	}
}
