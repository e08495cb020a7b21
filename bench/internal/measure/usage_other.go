//go:build !unix

package measure

func processUsage() usage { return usage{} }
