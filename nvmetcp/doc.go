// Package nvmetcp is an NVMe/TCP host: it connects to subsystems, and reads and writes their
// namespaces, from user space.
//
//	host := nvmetcp.Host{} // this machine, by /etc/nvme or an identity made once and kept
//	sub, err := host.Connect(ctx, nvmetcp.Target{Addr: "192.0.2.10:4420", NQN: "nqn.2025-01.io.example:models"}, nil)
//	defer sub.Close()
//	ns, err := sub.Namespace(ctx, 1)
//	n, err := ns.ReadAt(buf, 1<<20)
//
// [Host] says who connects and [Target] where to; [Options] has what may be chosen, all of it with
// defaults. A [Subsystem] is an association with a controller. A [Namespace] is what is read and
// written: it is an io.ReaderAt and io.WriterAt, takes contexts and lists of buffers, and pulls bulk
// reads from a [Feed]. [Host.Discover] lists what is at an address.
//
// Errors are [*OpError], which say what was tried, where, and what may help; errors.Is compares them
// with the Err variables of this package and with the status codes of package nvme. [Retryable] tells
// whether to try again.
//
// Associations are not yet made again when they are lost, and authentication and TLS are not
// supported yet.
package nvmetcp
