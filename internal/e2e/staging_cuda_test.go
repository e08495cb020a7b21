//go:build cuda && linux && cgo

package e2e

import (
	"github.com/nvstage/nvstage/internal/gputest"
	"github.com/nvstage/nvstage/staging/cuda"
)

func init() {
	deviceKinds = append(deviceKinds, deviceKind{"cuda", openStandins(gputest.CUDA, cuda.Open)})
}
