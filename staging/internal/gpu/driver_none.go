//go:build !linux || !cgo || !(cuda || rocm)

package gpu

import "errors"

const linked = false

func openDriver(*Vendor, string) (driver, error) { return nil, errors.ErrUnsupported }
