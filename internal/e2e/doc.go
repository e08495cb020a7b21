// Package e2e holds the cases that must pass against every target that can be had: a real Linux nvmet
// and the in-process target in each of its modes, with every driver. It has only tests.
package e2e
