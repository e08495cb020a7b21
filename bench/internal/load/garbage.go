package load

import (
	"context"
	"time"
)

// Garbage is made in pieces like these, and so many of them stay alive, so that the collector has work.
const (
	garbagePiece = 16 << 10
	garbageKept  = 4096 // 64 MiB
	garbageEvery = time.Millisecond
)

// litter allocates so many bytes a second until ctx ends, as a program around the load might.
func litter(ctx context.Context, perSecond int) {
	t := time.NewTicker(garbageEvery)
	defer t.Stop()
	kept := make([][]byte, garbageKept)
	began, made := time.Now(), int64(0)
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for due := int64(time.Since(began).Seconds() * float64(perSecond)); made < due; made += garbagePiece {
			kept[n%garbageKept] = make([]byte, garbagePiece)
			n++
		}
	}
}
