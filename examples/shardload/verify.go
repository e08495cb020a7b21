package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/nvstage/nvstage/staging"
	"github.com/spf13/pflag"
)

func verifyCommand(fs *pflag.FlagSet) runner {
	var (
		l     loadFlags
		files []string
		sums  string
	)
	l.add(fs)
	fs.StringArrayVar(&files, "file", nil, "`FILE` to compare with; once for each shard")
	fs.StringVar(&sums, "sums", "", "list of checksums to compare with, as shardload sums prints it")
	return func(ctx context.Context, con console, _ []string) error {
		if (len(files) > 0) == (sums != "") {
			return usagef("compare with what? Give either --file or --sums")
		}
		if err := l.needTarget(); err != nil {
			return err
		}
		host, err := l.host()
		if err != nil {
			return err
		}
		if sums != "" && l.rank.ranks > 1 {
			return usagef("--rank loads parts of tensors, and --sums is of whole ones: compare with --file")
		}
		var ref reference
		if sums != "" {
			ref, err = readSums(sums)
		} else {
			ref, err = referenceOf(ctx, con, files, &l.rank)
		}
		if err != nil {
			return err
		}
		return l.load(ctx, con, &loading{
			command: "verify", host: host, target: l.target(), hash: "SHA-256",
			reference: func(staging.Plan) reference { return ref },
		})
	}
}

// reference is what tensors should be.
type reference struct {
	against string
	sums    map[string]string             // by tensor, in hex
	tensors map[string]staging.TensorInfo // type and shape, where they are known
}

// compare compares the tensors that were loaded with what they should be.
func (s *stream) compare(algorithm string, ref reference) *checkedReport {
	c := &checkedReport{Algorithm: algorithm, Against: ref.against, Wrong: []string{}}
	wrong := func(name, format string, args ...any) {
		c.Wrong = append(c.Wrong, nameText(name)+": "+fmt.Sprintf(format, args...))
	}
	for _, t := range s.plan {
		want, ok := ref.sums[t.Name]
		if !ok {
			c.Extra = append(c.Extra, nameText(t.Name))
			continue
		}
		c.Compared++
		info, known := ref.tensors[t.Name]
		switch got := s.sums[t.Name]; {
		case known && (info.DType != t.DType || !slices.Equal(info.Shape, t.Shape)):
			wrong(t.Name, "is %v %v, should be %v %v", t.DType, t.Shape, info.DType, info.Shape)
		case got != want:
			wrong(t.Name, "%s is %s, should be %s", algorithm, got, want)
		}
	}
	for name := range ref.sums {
		if _, ok := s.sums[name]; !ok {
			c.Missing = append(c.Missing, nameText(name))
		}
	}
	slices.Sort(c.Missing)
	return c
}

func newSHA256() hash.Hash { return sha256.New() }

// referenceOf computes the checksums of the tensors of files, or of what a rank needs of them.
func referenceOf(ctx context.Context, con console, files []string, r *rank) (reference, error) {
	ref := reference{against: strings.Join(files, ", "), sums: map[string]string{}, tensors: map[string]staging.TensorInfo{}}
	for _, file := range files {
		err := fileSums(ctx, con, file, r, func(c *staging.Checksum) error {
			if _, ok := ref.sums[c.Name]; ok {
				return fmt.Errorf("%s: tensor %s is in another file too", file, nameText(c.Name))
			}
			ref.sums[c.Name], ref.tensors[c.Name] = hex.EncodeToString(c.SHA256[:]), *c.TensorInfo
			return nil
		})
		if err != nil {
			return ref, err
		}
	}
	return ref, nil
}

// openShardFile opens a file that is exactly a shard.
func openShardFile(ctx context.Context, name string) (f *os.File, s *staging.Shard, err error) {
	if f, err = os.Open(name); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
			err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, errors.New("not a regular file")
	}
	if s, err = staging.OpenShard(ctx, &staging.ReaderSource{ReaderAt: f, Bytes: info.Size()}); err != nil {
		return nil, nil, err
	}
	size := info.Size()
	if s.LZ4 != nil {
		size = s.LZ4.Size()
	}
	if s.Size < size {
		return nil, nil, fmt.Errorf("%w: shard of %d bytes, file of %d", staging.ErrTrailing, s.Size, size)
	}
	return f, s, nil
}

// fileSums gives f the checksums of the tensors of a file, in its order, or of what a rank needs of them.
func fileSums(ctx context.Context, con console, name string, r *rank, f func(*staging.Checksum) error) error {
	file, shard, err := openShardFile(ctx, name)
	if err != nil {
		return err
	}
	defer file.Close()
	plan, err := r.of(shard.Plan())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	pool, err := staging.NewPool(staging.PoolConfig{Bytes: 8 << 20, HugePages: staging.Never, Lock: staging.Never})
	if err != nil {
		return err
	}
	defer pool.Close()
	loader := &staging.Loader{Pool: pool}
	done := func() int64 { return loader.Stats().Bytes }
	defer watch(con, "reading "+nameText(name), "read", plan.Bytes(), done)()
	for c, err := range loader.Checksums(ctx, plan) {
		if err == nil {
			err = f(&c)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func sumsCommand(*pflag.FlagSet) runner {
	return func(ctx context.Context, con console, files []string) error {
		if len(files) == 0 {
			return usagef("which files?")
		}
		out := bufio.NewWriter(con.out)
		for _, file := range files {
			err := fileSums(ctx, con, file, &rank{}, func(c *staging.Checksum) error {
				if strings.ContainsAny(c.Name, "\n\r") {
					return fmt.Errorf("tensor %s: a list cannot hold a name with line breaks", nameText(c.Name))
				}
				_, err := fmt.Fprintf(out, "%x  %s\n", c.SHA256, c.Name)
				return err
			})
			if err != nil {
				return err
			}
		}
		return out.Flush()
	}
}

// maxSumsLine is the longest line of a list of checksums, in bytes.
const maxSumsLine = 1 << 20

// readSums reads a list of checksums: on each line SHA-256 in hex, two spaces, the tensor's name.
func readSums(name string) (reference, error) {
	ref := reference{against: name, sums: map[string]string{}}
	f, err := os.Open(name)
	if err != nil {
		return ref, err
	}
	defer f.Close()
	s := bufio.NewScanner(io.Reader(f))
	s.Buffer(nil, maxSumsLine)
	n := 0
	for s.Scan() {
		n++
		sum, tensor, ok := strings.Cut(s.Text(), "  ")
		if b, err := hex.DecodeString(sum); !ok || err != nil || len(b) != sha256.Size {
			return ref, fmt.Errorf("%s: line %d is not a SHA-256 in hex, two spaces, and the name of a tensor", name, n)
		}
		if _, ok := ref.sums[tensor]; ok {
			return ref, fmt.Errorf("%s: line %d: tensor %s is in the list twice", name, n, nameText(tensor))
		}
		ref.sums[tensor] = strings.ToLower(sum)
	}
	if err := s.Err(); err != nil {
		return ref, fmt.Errorf("%s: line %d: %w", name, n+1, err)
	}
	if n == 0 {
		return ref, fmt.Errorf("%s is empty", name)
	}
	return ref, nil
}
