//go:build rocm && linux && cgo

package e2e

import (
	"github.com/nvstage/nvstage/internal/gputest"
	"github.com/nvstage/nvstage/staging/rocm"
)

func init() {
	deviceKinds = append(deviceKinds, deviceKind{"rocm", openStandins(gputest.HIP, rocm.Open)})
}
