// Package topo tells which CPUs the process may use and which NUMA nodes CPUs and network devices belong to, and pins
// threads to CPUs. Only Linux is served: elsewhere what asks the system fails with [errors.ErrUnsupported] or says -1.
package topo
