// Package nvmetest has an NVMe/TCP target that runs in the test's own process, as net/http/httptest
// has an HTTP server.
//
//	target, err := nvmetest.Start(nvmetest.Config{})
//	...
//	defer target.Close()
//	// connect a host to target.Addr() and target.NQN()
//	...
//	if v := target.Violations(); len(v) > 0 { ... } // the host broke a rule
//
// A target imitates the Linux kernel's nvmet, or SPDK's nvmf target, or is as free as the
// specification allows and as strict as it demands: see [Mode]. It serves memory, files, anything
// that is an io.ReaderAt, and nothing at all, for measuring: see [Backend]. It has a discovery
// controller on every port. What it is told to do wrong is in [Faults], and what goes wrong on one
// connection in the methods of [Conn].
//
// The target needs nothing but the net package and runs wherever Go does. It is no storage server:
// there is no authentication, no TLS, no reservations, no persistence beyond the backend's.
package nvmetest
