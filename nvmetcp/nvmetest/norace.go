//go:build !race

package nvmetest

const raceEnabled = false
