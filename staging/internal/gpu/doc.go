// Package gpu is what packages cuda and rocm share, which is nearly everything: the two drivers differ in the names of their calls and in how
// a device is made current. Its exported names are documented here and offered there.
//
// The ways of a copy: from and to memory that is registered it is asynchronous, on one of the device's streams ([lane]), and its end is known by
// an event behind it. A goroutine per stream sleeps until there is a copy, then in the driver until the event, and calls done. The driver never
// calls Go. From and to other memory the copy is made at once, by the calling goroutine.
//
// No goroutine is tied to a thread for this. The C functions make the device current on the thread that they run on, and restore what was before.
package gpu
