package staging

import (
	"errors"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

var (
	errPin   = errors.New("cannot pin")
	errUnpin = errors.New("cannot unpin")
)

// pinner is a device that keeps what is registered with it.
type pinner struct {
	Host
	name     string
	log      *[]string // registers and unregisters of all devices
	failAt   int       // the registration that fails, counted from 1
	unpinErr error
	calls    int
	areas    []span
}

// span is an area of memory by its numbers, which stay when it is unmapped.
type span struct{ at, n uintptr }

func spanOf(mem []byte) span { return span{uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem))} }

func (d *pinner) Name() string { return d.name }

func (d *pinner) Register(mem []byte) (func() error, error) {
	if d.calls++; d.calls == d.failAt {
		return nil, errPin
	}
	s := spanOf(mem)
	d.areas = append(d.areas, s)
	if d.log != nil {
		*d.log = append(*d.log, "+"+d.name)
	}
	undone := false
	return func() error {
		if undone {
			panic("unregistered twice")
		}
		undone = true
		if d.unpinErr != nil {
			return d.unpinErr
		}
		mem[0]++ // still mapped
		i := slices.Index(d.areas, s)
		if i < 0 {
			panic("not registered")
		}
		d.areas = slices.Delete(d.areas, i, i+1)
		if d.log != nil {
			*d.log = append(*d.log, "-"+d.name)
		}
		return nil
	}, nil
}

func TestPoolRegister(t *testing.T) {
	for _, debug := range []bool{false, true} {
		var log []string
		a, b := &pinner{name: "gpu a", log: &log}, &pinner{name: "gpu b", log: &log}
		p, err := NewPool(PoolConfig{Bytes: 3 * 4096, BufferSize: 4096, Devices: []Device{a, Host{}, b}, Register: Require, Debug: debug})
		require.NoError(t, err)
		info := p.Info()
		require.Equal(t, []string{"gpu a", "gpu b"}, info.Registered)
		require.Empty(t, info.RegisterNote)
		require.Contains(t, info.String(), "registered with gpu a and gpu b")
		// Every buffer is registered, and no guard page is.
		total := uintptr(0)
		for _, s := range a.areas {
			require.Zero(t, s.at%bufferAlign)
			total += s.n
		}
		require.EqualValues(t, info.Bytes, total)
		require.Equal(t, a.areas, b.areas)
		x, _ := p.TryGet()
		require.True(t, slices.ContainsFunc(a.areas, func(s span) bool {
			at := spanOf(x.Bytes())
			return s.at <= at.at && at.at+at.n <= s.at+s.n
		}))
		require.Error(t, p.Close())
		require.Len(t, log, 2*len(a.areas), "a refused Close unregisters nothing")
		x.Release()
		parts := len(a.areas)
		require.NoError(t, p.Close())
		want := slices.Concat(slices.Repeat([]string{"+gpu a"}, parts), slices.Repeat([]string{"+gpu b"}, parts),
			slices.Repeat([]string{"-gpu b"}, parts), slices.Repeat([]string{"-gpu a"}, parts))
		require.Equal(t, want, log)
	}
}

// A device that refuses is an error or a note, and what it had taken already is taken back.
func TestPoolRegisterRefused(t *testing.T) {
	for _, failAt := range []int{1, 2} { // with guard pages there are several registrations
		good, bad := &pinner{name: "good"}, &pinner{name: "bad", failAt: failAt}
		cfg := PoolConfig{Bytes: 3 * 4096, BufferSize: 4096, Devices: []Device{good, bad}, Debug: failAt > 1}
		p, err := NewPool(cfg)
		require.NoError(t, err)
		info := p.Info()
		if failAt > len(p.areas()) { // no guard pages on this system
			require.NoError(t, p.Close())
			continue
		}
		require.Equal(t, []string{"good"}, info.Registered)
		require.Contains(t, info.RegisterNote, "bad: registering staging memory: cannot pin")
		require.Contains(t, info.String(), "not registered with bad")
		require.Empty(t, bad.areas)
		require.NotEmpty(t, good.areas)

		cfg.Register, bad.calls = Require, 0
		_, err = NewPool(cfg)
		require.ErrorIs(t, err, errPin)
		require.ErrorContains(t, err, "bad: registering")
		require.Empty(t, bad.areas)

		cfg.Register, bad.calls = Never, 0
		never, err := NewPool(cfg)
		require.NoError(t, err)
		require.Zero(t, bad.calls, "not even asked")
		require.Empty(t, never.Info().Registered)
		require.NoError(t, never.Close())
		require.NoError(t, p.Close())
		require.Empty(t, good.areas)
	}
}

// What a device cannot unregister stays mapped, but the other devices are told, and the error says so.
func TestPoolUnregisterFails(t *testing.T) {
	l := &Limit{}
	bad, good := &pinner{name: "bad", unpinErr: errUnpin}, &pinner{name: "good"}
	p, err := NewPool(PoolConfig{Bytes: 2 * 4096, BufferSize: 4096, HugePages: Never, Devices: []Device{good, bad}, Limit: l})
	require.NoError(t, err)
	mem := p.mem
	err = p.Close()
	require.ErrorIs(t, err, errUnpin)
	require.ErrorContains(t, err, "bad: unregistering staging memory, which stays mapped")
	require.Empty(t, good.areas)
	mem[0] = 1 // would end the process
	require.EqualValues(t, 2*4096, l.Used(), "it still takes memory")
	require.NoError(t, p.Close(), "nothing more can be done")

	// Likewise when NewPool gives up.
	failing := &pinner{name: "failing", failAt: 1}
	_, err = NewPool(PoolConfig{Bytes: 2 * 4096, BufferSize: 4096, HugePages: Never, Devices: []Device{bad, failing}, Register: Require, Limit: l})
	require.ErrorIs(t, err, errPin)
	require.ErrorIs(t, err, errUnpin)
	require.EqualValues(t, 4*4096, l.Used())

	// And when it gives up on a device that it has registered some of the buffers with.
	half := &pinner{name: "half", failAt: 2, unpinErr: errUnpin}
	p, err = NewPool(PoolConfig{Bytes: 2 * 4096, BufferSize: 4096, HugePages: Never, Devices: []Device{half}, Limit: l, Debug: true})
	if err == nil { // no guard pages on this system, and so one registration
		require.Len(t, p.areas(), 1)
		return
	}
	require.ErrorIs(t, err, errPin)
	require.ErrorIs(t, err, errUnpin)
	require.EqualValues(t, 6*4096, l.Used())
}

// Memory that a driver has allocated is used as it is, and is the caller's again afterwards.
func TestPoolMemory(t *testing.T) {
	whole := make([]byte, 6*4096)
	skip := int(-uintptr(unsafe.Pointer(&whole[0])) & (bufferAlign - 1))
	mem := whole[skip : skip+4*4096+4000]
	l := &Limit{}
	d := &pinner{name: "gpu"}
	p, err := NewPool(PoolConfig{Memory: mem, BufferSize: 4096, Limit: l, Devices: []Device{d}, Node: new(0)})
	require.NoError(t, err)
	info := p.Info()
	t.Log(info)
	require.Equal(t, 4, info.Buffers, "whole buffers of it")
	require.Equal(t, []span{spanOf(mem[:4*4096])}, d.areas)
	require.Zero(t, info.LockedBytes)
	for _, note := range []string{info.HugePagesNote, info.LockNote, info.NodeNote} {
		require.Equal(t, "the memory is the caller's", note)
	}
	require.EqualValues(t, 4*4096, l.Used())
	b, ok := p.TryGet()
	require.True(t, ok)
	require.Same(t, &mem[0], &b.Bytes()[0])
	b.Release()
	require.NoError(t, p.Close())
	require.Zero(t, l.Used())
	require.Empty(t, d.areas)
	mem[0] = 1

	for want, cfg := range map[string]PoolConfig{
		"starts at":       {Memory: mem[1:], BufferSize: 4096},
		"16 KiB":          {Memory: mem[:4*4096], BufferSize: 4096, Bytes: 5 * 4096},
		"has 0 bytes":     {Memory: []byte{}},
		"has 20384 bytes": {Memory: mem},
		"cannot be required of memory that the caller gives": {Memory: mem, BufferSize: 4096, Lock: Require},
	} {
		_, err := NewPool(cfg)
		require.ErrorContains(t, err, want)
	}
}
