// Package uring is a minimal io_uring: one submission and one completion ring, driven by one thread, with the few
// operations that a socket poller needs. It asks the kernel for SINGLE_ISSUER, DEFER_TASKRUN and NO_SQARRAY and does
// without those that an older kernel refuses. Linux 5.19 is the oldest that will do.
//
// # Ownership
//
// A [Ring] belongs to the thread that made it: call [runtime.LockOSThread] before [New], and make every call, [Ring.Close]
// included, on that thread. No method locks anything.
//
// # Memory
//
// The kernel gets plain addresses, which the garbage collector does not see. Whatever an operation refers to (buffer,
// msghdr, iovecs, sockaddr, control data) must stay reachable and untouched from Prep until the operation's last CQE has
// been taken by [Ring.Next], or until Close has returned nil. Keep them in the structure that also holds the
// Ring, or outside the Go heap. Go does not move heap objects, and the Prep functions let their arguments escape, so that
// none of them is ever on a goroutine's stack, which does move.
//
// # Waiting
//
// An operation that cannot be done at once stays armed until it can, even on a descriptor with O_NONBLOCK (every socket
// that package net made). With MSG_DONTWAIT it completes with -EAGAIN instead, in the Enter that submits it.
package uring

// Config says what ring [New] makes.
type Config struct {
	// Entries is the size of the submission ring: how many operations can be prepared between two calls of Enter.
	// The kernel rounds it up to a power of two. 1 to 32768.
	Entries uint32

	// CQEntries is the size of the completion ring, at least Entries, rounded up likewise, at most 65536.
	// 0 means twice Entries. Completions beyond it are not lost: the kernel keeps them on a slower list.
	CQEntries uint32

	setup setupFunc // nil: the system call; tests put refusals here
}

// CQE is one completion.
type CQE struct {
	UserData uint64 // the ud given to Prep
	Res      int32  // bytes moved, or poll's ready events, or a negated errno
	Flags    uint32 // CQE* flags
}

// Flags of a [CQE].
const (
	// CQEMore (IORING_CQE_F_MORE): the operation stays armed and will complete again.
	CQEMore = 1 << 1
	// CQESockNonEmpty (IORING_CQE_F_SOCK_NONEMPTY): after this receive the socket had more to give.
	CQESockNonEmpty = 1 << 2
)
