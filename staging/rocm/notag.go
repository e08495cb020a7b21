//go:build !rocm

package rocm

const tagged = false
