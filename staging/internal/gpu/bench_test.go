//go:build linux && cgo && (cuda || rocm)

package gpu

import (
	"fmt"
	"testing"
	"time"

	"github.com/nvstage/nvstage/internal/gputest"
)

// BenchmarkCopyIn is what a copy costs here, with a stand-in that moves no bytes, when up to 64 are in flight.
func BenchmarkCopyIn(b *testing.B) {
	for _, n := range []int{4 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchCopies(b, n, "move=0") })
	}
}

// BenchmarkLink is which share of a link of 25 GB/s copies of 1 MiB use.
func BenchmarkLink(b *testing.B) {
	const rate = 25e9
	begun := time.Now()
	n := benchCopies(b, 1<<20, fmt.Sprintf("move=0,rate=%g", rate))
	b.ReportMetric(float64(n)/time.Since(begun).Seconds()/rate, "of-link")
}

// benchCopies returns how many bytes it copied.
func benchCopies(b *testing.B, n int, settings string) int64 {
	s := gputest.New(b, gputest.CUDA, settings)
	d := open(b, CUDA, s, Config{})
	src, m := registered(b, d, n), alloc(b, d, int64(n))
	room := make(chan struct{}, 64)
	done := func(err error) {
		if err != nil {
			b.Error(err)
		}
		<-room
	}
	b.SetBytes(int64(n))
	b.ReportAllocs()
	for b.Loop() {
		room <- struct{}{}
		d.CopyIn(m, 0, src, done)
	}
	for range cap(room) {
		room <- struct{}{}
	}
	return d.Stats().InBytes
}
