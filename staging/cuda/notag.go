//go:build !cuda

package cuda

const tagged = false
