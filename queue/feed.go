package queue

// Feed gives a queue its next command whenever it has room for one. The queue calls all three
// methods on its own goroutine, so they must neither block nor take long, and need no lock as long
// as the feed serves one queue.
type Feed interface {
	// Next returns the next command, or nil for "nothing now". After nil the queue asks again when
	// one of the feed's commands has completed, and after Queue.Wake.
	Next() *Command
	// Complete hands a command back. Its buffers and the Command are the feed's again.
	Complete(*Command)
	// Closed is the last call: no command of the feed is outstanding any more. err is nil after
	// Queue.Detach, otherwise what ended the queue.
	Closed(err error)
}

// feedState is a feed as the engine keeps it.
type feedState struct {
	Feed
	outstanding int
	dry         bool // Next returned nil and nothing has happened since
	leaving     bool // detached: ask no more
}
