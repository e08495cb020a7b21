//go:build (cuda || rocm) && linux && cgo

package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/internal/gputest"
	"github.com/nvstage/nvstage/staging/cuda"
)

// A model on a GPU, here a stand-in's, is checked by what is copied back from it, and swapped.
func TestGPU(t *testing.T) {
	for name, driver := range map[string]*gputest.Driver{"cuda": gputest.CUDA, "rocm": gputest.HIP} {
		t.Run(name, func(t *testing.T) {
			s := gputest.New(t, driver)
			t.Setenv("NVSTAGE_"+strings.ToUpper(name)+"_LIBRARY", s.Path)
			dev, node, err := openDevice(name, 1)
			if errors.Is(err, cuda.ErrNotBuilt) {
				return // by this tag; the other one is
			}
			require.NoError(t, err)
			require.NotNil(t, node)
			files := [][]byte{shard(t, 1<<20, 1), shard(t, 1<<20, 2)}
			r := start(t, startTarget(t, files...), dev, 0, nil)
			r.serves(r.loaded(namespaces(1)), of(t, files[0]))
			r.serves(r.loaded(namespaces(2)), of(t, files[1]))
			input, x := vector(width)
			_, got := r.infer("lm_head.weight", input)
			require.Equal(t, of(t, files[1]).product("lm_head.weight", x), got.Output)
			r.stop()
			require.NoError(t, dev.Close()) // which says so if memory is left
		})
	}
}
