//go:build rocm

package rocm

const tagged = true
