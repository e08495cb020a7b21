package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/internal/topo"
)

// tree is the directory that /sys, /proc and /etc are in. What is read from there is bounded, and need not be what the
// kernel would put there.
type tree struct{ root string }

const (
	maxText    = 64 << 10 // bytes of a file
	maxEntries = 16 << 10 // entries of a directory
)

func (t tree) path(elem ...string) string {
	return filepath.Join(append([]string{t.root}, elem...)...)
}

// head returns up to n bytes of the start of a file, and whether that is all of it. A pipe is no file: reading it could
// take forever.
func (t tree) head(n int64, elem ...string) (text string, whole bool, err error) {
	f, err := os.OpenFile(t.path(elem...), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: f.Name(), Err: errors.New("not a regular file")}
	}
	if err != nil {
		return "", false, err
	}
	b, err := io.ReadAll(io.LimitReader(f, n+1))
	if err != nil {
		return "", false, err
	}
	whole = int64(len(b)) <= n
	return string(b[:min(int64(len(b)), n)]), whole, nil
}

// text is the contents of a small file, without space around it.
func (t tree) text(elem ...string) (string, error) {
	s, whole, err := t.head(maxText, elem...)
	if err == nil && !whole {
		return "", fmt.Errorf("%s is longer than %s", t.path(elem...), bytesText(maxText))
	}
	return strings.TrimSpace(s), err
}

// line is text where it is one short line, else "".
func (t tree) line(elem ...string) string {
	const longest = 200
	s, err := t.text(elem...)
	if err != nil || len(s) > longest || strings.ContainsRune(s, '\n') {
		return ""
	}
	return s
}

// number is a file's number, or unknown.
func (t tree) number(unknown int64, elem ...string) int64 {
	n, err := strconv.ParseInt(t.line(elem...), 10, 64)
	if err != nil {
		return unknown
	}
	return n
}

// numbers are those of a file with several, nil if one is none.
func (t tree) numbers(elem ...string) []int64 {
	var all []int64
	for field := range strings.FieldsSeq(t.line(elem...)) {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil
		}
		all = append(all, n)
	}
	return all
}

// list is a file's list of CPUs or nodes, nil if there is none.
func (t tree) list(elem ...string) []int {
	text, err := t.text(elem...)
	if err != nil {
		return nil
	}
	list, err := topo.ParseList(text)
	if err != nil {
		return nil
	}
	return list
}

// dir lists the names in a directory in order; nil if it cannot be read.
func (t tree) dir(elem ...string) []string {
	f, err := os.OpenFile(t.path(elem...), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, err := f.Readdirnames(maxEntries)
	if err != nil {
		return nil
	}
	slices.Sort(names)
	return names
}

// resolved is where a chain of links leads to, below the root; "" if nowhere.
func (t tree) resolved(elem ...string) string {
	root, err := filepath.EvalSymlinks(t.root)
	if err != nil {
		return ""
	}
	to, err := filepath.EvalSymlinks(t.path(elem...))
	if err != nil {
		return ""
	}
	rel, err := filepath.Rel(root, to)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return ""
	}
	return rel
}

// linkName is the last element of what a link says, "" if it is none.
func (t tree) linkName(elem ...string) string {
	to, err := os.Readlink(t.path(elem...))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

func (t tree) exists(elem ...string) bool {
	_, err := os.Stat(t.path(elem...))
	return err == nil
}

// field is the value after the first "key:" or "key :" of a file such as /proc/self/status.
func (t tree) field(key string, elem ...string) string {
	s, _, err := t.head(maxText, elem...)
	if err != nil {
		return ""
	}
	for l := range strings.Lines(s) {
		k, v, ok := strings.Cut(l, ":")
		if ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// kib is a field in kB, in bytes; -1 if it is none.
func (t tree) kib(key string, elem ...string) int64 {
	n, ok := strings.CutSuffix(t.field(key, elem...), " kB")
	v, err := strconv.ParseInt(n, 10, 64)
	if !ok || err != nil || v < 0 || v > 1<<52 {
		return -1
	}
	return v << 10
}
