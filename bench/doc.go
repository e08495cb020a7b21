// Package bench has benchmarks of the whole way of a byte, from a target in a process of its own into
// the caller's memory. Those of single parts are with the parts: codecs and CRC in pdu, one queue in
// queue. README.md has the method and results; nvmeperf is the load generator, target a fast target.
package bench
