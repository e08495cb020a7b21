package nvmetvm

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// debian gets packages through apt.
type debian struct {
	log     *slog.Logger
	updated bool // the package lists are as fresh as they get
}

// need installs the package that has program, unless the program is there.
func (d *debian) need(ctx context.Context, program, pkg string) error {
	if _, err := exec.LookPath(program); err == nil {
		return nil
	}
	if os.Getuid() != 0 {
		return fmt.Errorf("%s is not installed, and only root can install it (apt-get install %s)", program, pkg)
	}
	d.log.Info("installing", "package", pkg)
	return d.retry(ctx, func() error {
		_, err := apt(ctx, "", "install", "-y", "--no-install-recommends", pkg)
		return err
	})
}

// newestKernel downloads the newest kernel of kernelPackages that the configured sources have into dir, and returns the
// package's name and its file's. Versions age out of a mirror, so that none can be named here.
func (d *debian) newestKernel(ctx context.Context, dir string) (name, deb string, err error) {
	err = d.retry(ctx, func() error {
		list, err := output(ctx, nil, "apt-cache", "pkgnames", "linux-image-6.12")
		if err != nil {
			return err
		}
		name = newestKernel(strings.Fields(string(list)))
		if name == "" {
			return errors.New("the configured package sources have no linux-image-6.12.*-cloud-amd64 (Debian 12 with security updates and Debian 13 do)")
		}
		deb, err = d.fetch(ctx, dir, name)
		return err
	})
	return name, deb, err
}

// newestKernel returns the newest of the names that kernelPackages matches, or "".
func newestKernel(names []string) string {
	var newest string
	var best []int
	for _, name := range names {
		m := kernelPackages.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		var version []int
		for _, digits := range m[1:] {
			n, _ := strconv.Atoi(cmp.Or(digits, "0")) // the pattern lets only digits in
			version = append(version, n)
		}
		if slices.Compare(version, best) > 0 {
			newest, best = name, version
		}
	}
	return newest
}

// download fetches the package into dir and returns the path of its file.
func (d *debian) download(ctx context.Context, dir, pkg string) (deb string, err error) {
	err = d.retry(ctx, func() error {
		deb, err = d.fetch(ctx, dir, pkg)
		return err
	})
	return deb, err
}

// fetch is download with the package lists as they are.
func (d *debian) fetch(ctx context.Context, dir, pkg string) (deb string, err error) {
	d.log.Info("downloading", "package", pkg)
	dir, err = os.MkdirTemp(dir, "deb-")
	if err != nil {
		return "", err
	}
	if _, err := apt(ctx, dir, "download", pkg); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("apt-get download %s left %d packages in %s (%v)", pkg, len(debs), dir, err)
	}
	return debs[0], nil
}

// retry calls f, and once more after an apt-get update if it failed: lists may lack, or name what mirrors have dropped.
func (d *debian) retry(ctx context.Context, f func() error) error {
	err := f()
	if err == nil || d.updated || os.Getuid() != 0 || ctx.Err() != nil {
		return err
	}
	d.log.Info("updating the package lists", "because", err)
	d.updated = true
	_, updateErr := apt(ctx, "", "update")
	if err := f(); err != nil {
		return errors.Join(err, updateErr)
	}
	return nil
}

// apt runs apt-get in dir, waiting for other runs of it to end.
func apt(ctx context.Context, dir string, args ...string) ([]byte, error) {
	args = append([]string{"-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::http::Timeout=30", "-o", "APT::Sandbox::User=root"}, args...)
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	return runOutput(ctx, cmd)
}

// output runs a program with the given input and returns what it wrote.
func output(ctx context.Context, stdin io.Reader, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = stdin
	return runOutput(ctx, cmd)
}

func runOutput(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	var stdout bytes.Buffer
	stderr := &tail{max: 4 << 10}
	cmd.Stdout, cmd.Stderr = &stdout, stderr
	// When the context ends, let dpkg leave its database in order.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr)
	}
	return stdout.Bytes(), nil
}

// readDeb returns the regular files of a Debian package that keep wants, by their paths from the root. Newer packages have
// usr/bin and usr/lib where older ones have bin and lib: both are given as the latter.
func readDeb(ctx context.Context, deb string, keep func(path string) bool) (tree, error) {
	content, err := output(ctx, nil, "dpkg-deb", "--fsys-tarfile", deb)
	if err != nil {
		return nil, err
	}
	files := tree{}
	r := tar.NewReader(bytes.NewReader(content))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", deb, err)
		}
		path := strings.TrimPrefix(strings.TrimPrefix(h.Name, "./"), "usr/")
		if h.Typeflag != tar.TypeReg || !keep(path) {
			continue
		}
		if files[path], err = io.ReadAll(r); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", deb, path, err)
		}
	}
}
