// Package topo tells which CPUs the process may use and which NUMA nodes CPUs and network devices belong to, pins
// threads to CPUs, and tells how much memory can be had. Only Linux is served: elsewhere what asks the system fails with
// [errors.ErrUnsupported], says -1, or is absent.
package topo
