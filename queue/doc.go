// Package queue runs NVMe queue pairs over TCP: one [Queue] is one connection, owned by one
// goroutine. It is locked to its thread where it has a CPU of its own (Config.Pin) or a ring that only
// its thread may use (io_uring); a goroutine that shares its CPU with callers hands over faster unlocked.
//
// That goroutine alone touches the socket, the command slots and the buffers of commands in flight,
// so nothing on the way of a byte takes a lock. It works in turns: take new commands, put their
// capsules into one send, receive, place payloads into the buffers of the commands that they answer,
// report completions. Two ways lead in:
//
//   - [Queue.Submit] and [Queue.Do] for single commands and batches from any goroutine; a batch
//     costs at most one wake-up;
//   - [Queue.Attach] for bulk: the queue pulls its next command from a [Feed] whenever it has a free
//     slot, and reports completions to it, both on its own thread.
//
// How bytes move is up to a driver: io_uring, plain non-blocking system calls with epoll, or any
// net.Conn. [Info] says which one runs and why.
package queue
