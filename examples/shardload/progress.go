package main

import (
	"fmt"
	"time"

	"github.com/schollz/progressbar/v3"
)

// How often progress is shown: on a terminal, and as lines.
const (
	barEvery  = 100 * time.Millisecond
	lineEvery = time.Second
)

// watch shows how far done has come on the way to total bytes, until stop is called: a bar on a terminal,
// otherwise a line each second. doing and did are "loading" and "loaded".
func watch(con console, doing, did string, total int64, done func() int64) (stop func()) {
	bar := isTerminal(con.err) && total > 0
	every, show, clear := lineEvery, lines(con, did, total, done), func() {}
	if bar {
		b := progressbar.NewOptions64(total, progressbar.OptionSetWriter(con.err), progressbar.OptionSetDescription(doing),
			progressbar.OptionShowBytes(true), progressbar.OptionShowCount(), progressbar.OptionUseIECUnits(true),
			progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish())
		_ = b.RenderBlank() // its clock starts with that
		every, show, clear = barEvery, func() { _ = b.Set64(done()) }, func() { _ = b.Clear() }
	}
	ticker := time.NewTicker(every)
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		defer clear()
		for {
			select {
			case <-ticker.C:
				show()
			case <-quit:
				return
			}
		}
	}()
	return func() {
		ticker.Stop()
		close(quit)
		<-gone
	}
}

// lines returns what prints one line of progress.
func lines(con console, did string, total int64, done func() int64) func() {
	begun := time.Now()
	return func() {
		n := done()
		percent := int64(100)
		if total > 0 {
			percent = int64(float64(n) / float64(total) * 100)
		}
		fmt.Fprintf(con.err, "shardload: %s %s of %s, %d %%, %s GiB/s\n",
			did, bytesText(n), bytesText(total), percent, digits3(gib(n)/time.Since(begun).Seconds()))
	}
}
