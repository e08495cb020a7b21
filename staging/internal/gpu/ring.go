package gpu

// ring is a queue. It grows to the most that it ever held.
type ring[T any] struct {
	buf   []T
	at, n int
}

func (r *ring[T]) push(v T) {
	if r.n == len(r.buf) {
		buf := make([]T, max(16, 2*r.n))
		for i := range r.n {
			buf[i] = r.buf[(r.at+i)%len(r.buf)]
		}
		r.buf, r.at = buf, 0
	}
	r.buf[(r.at+r.n)%len(r.buf)] = v
	r.n++
}

// pop takes the oldest element off a ring that is not empty.
func (r *ring[T]) pop() T {
	var none T
	v := r.buf[r.at]
	r.buf[r.at] = none // for the garbage collector
	r.at = (r.at + 1) % len(r.buf)
	r.n--
	return v
}

// front is the oldest element of a ring that is not empty.
func (r *ring[T]) front() *T { return &r.buf[r.at] }
