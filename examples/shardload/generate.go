package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/spf13/pflag"
)

func generateCommand(fs *pflag.FlagSet) runner {
	var made modelFlags
	made.add(fs)
	return func(ctx context.Context, con console, args []string) error {
		if len(args) != 1 {
			return usagef("generate writes to one directory, not %d", len(args))
		}
		m, err := newModel(made)
		if err != nil {
			return err
		}
		if err := os.Mkdir(args[0], 0o777); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		var size int64
		for _, s := range m.shards {
			size += s.header.Size
		}
		if err := room(args[0], size); err != nil {
			return err
		}
		for _, s := range m.shards {
			name := filepath.Join(args[0], s.name)
			if err := s.save(ctx, con, name); err != nil {
				return err
			}
			if _, err := fmt.Fprintln(con.out, name); err != nil {
				return err
			}
		}
		return nil
	}
}

// room is an error if a directory's file system is known to have less than n bytes for this user.
func room(dir string, n int64) error {
	if free, known := freeBytes(dir); known && free < n {
		return fmt.Errorf("%s has room for %s, and the model has %s: choose another directory, or less with --size", dir, bytesText(free), bytesText(n))
	}
	return nil
}

// save writes the shard to a new file.
func (s *modelShard) save(ctx context.Context, con console, name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists: remove it, or choose another directory", name)
	}
	if err != nil {
		return err
	}
	var done atomic.Int64
	stop := watch(con, "writing "+s.name, "written", s.header.Size, done.Load)
	err = s.copyTo(ctx, f, &done)
	stop()
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		_ = os.Remove(name)
	}
	return err
}

func (s *modelShard) copyTo(ctx context.Context, w io.Writer, done *atomic.Int64) error {
	buf := make([]byte, 1<<20)
	for off := int64(0); off < s.header.Size; off += int64(len(buf)) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		b := buf[:min(int64(len(buf)), s.header.Size-off)]
		if _, err := s.ReadAt(b, off); err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
		done.Add(int64(len(b)))
	}
	return nil
}
