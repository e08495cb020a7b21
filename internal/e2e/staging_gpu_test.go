//go:build linux && cgo && (cuda || rocm)

package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/internal/gputest"
	"github.com/nvstage/nvstage/staging"
	"github.com/nvstage/nvstage/staging/cuda"
)

// openStandins opens both devices of a stand-in driver whose copies take their time and end in any order. When the test ends, the stand-in says what was
// done wrong, or is left over. (Packages cuda and rocm have the same types.)
func openStandins(driver *gputest.Driver, open func(cuda.Config) (*cuda.Device, error)) func(t *testing.T) ([2]staging.Device, func() int64) {
	return func(t *testing.T) ([2]staging.Device, func() int64) {
		s := gputest.New(t, driver, "rate=4e9", "delay_us=20", "jitter_us=150")
		var gpus [2]*cuda.Device
		for i := range gpus {
			d, err := open(cuda.Config{Ordinal: i, Library: s.Path})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, d.Close()) })
			gpus[i] = d
		}
		return [2]staging.Device{gpus[0], gpus[1]}, func() int64 { return gpus[0].Stats().Memory + gpus[1].Stats().Memory }
	}
}
