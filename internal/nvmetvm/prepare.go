package nvmetvm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// recipe is all that decides what Prepare makes; its hash names the folder in the cache, so that no change is missed.
//
//go:embed guest prepare.go initramfs.go vmlinux.go
var recipe embed.FS

// modules are loaded in this order, each after those it depends on; crypto that 6.12 does not build in comes first.
// A name may be followed by parameters.
var modules = []string{
	"crc32c-intel", "virtio_pci", "virtio_console", "virtio_net", "null_blk nr_devices=0", "brd rd_nr=2 rd_size=65536", "nvmet", "nvmet-tcp",
}

// kernelPackages matches the kernels that will do: they carry nvmet-tcp and the virtio drivers, and boot fast.
var kernelPackages = regexp.MustCompile(`^linux-image-6\.12\.(\d+)\+deb(\d+)(?:\.(\d+))?-cloud-amd64$`)

// Image is a prepared target: what [Boot] boots.
type Image struct {
	Package   string // the Debian package that the kernel came from
	Vmlinux   string // path of the uncompressed kernel
	Initramfs string // path of the initramfs
}

// Prepare returns the target's kernel and initramfs, making them if the cache does not have them: it installs QEMU where
// that lacks, downloads a Debian kernel and busybox (36 MB), and builds the initramfs. The kernel is never installed.
// Test binaries that run at the same time wait for the first.
func Prepare(ctx context.Context, c Config) (Image, error) {
	if err := Available(c); err != nil {
		return Image{}, err
	}
	dir, err := c.cacheDir()
	if err != nil {
		return Image{}, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Image{}, fmt.Errorf("nvmetvm: cache folder: %w", err)
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return Image{}, fmt.Errorf("nvmetvm: waiting for another process to prepare %s: %w", dir, err)
	}
	defer unlock()

	d := &debian{log: c.log()}
	if err := d.need(ctx, qemu, qemuPackage); err != nil {
		return Image{}, err
	}
	if img, ok := cached(dir); ok {
		return img, nil
	}
	began := time.Now()
	if err := build(ctx, d, dir); err != nil {
		return Image{}, fmt.Errorf("nvmetvm: preparing %s: %w", dir, err)
	}
	img, ok := cached(dir)
	if !ok {
		return Image{}, fmt.Errorf("nvmetvm: %s vanished while it was prepared", dir)
	}
	d.log.Info("prepared the target", "kernel", img.Package, "folder", filepath.Dir(img.Vmlinux), "took", time.Since(began).Round(time.Millisecond))
	return img, nil
}

// cached returns the image in dir that belongs to this recipe, if it is there. A folder is complete once it has its name.
func cached(dir string) (Image, bool) {
	dir = filepath.Join(dir, recipeKey())
	name, err := os.ReadFile(filepath.Join(dir, "package"))
	return Image{
		Package:   string(name),
		Vmlinux:   filepath.Join(dir, "vmlinux"),
		Initramfs: filepath.Join(dir, "initramfs"),
	}, err == nil
}

func recipeKey() string {
	h := sha256.New()
	err := fs.WalkDir(recipe, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := recipe.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n", path, len(text))
		h.Write(text)
		return err
	})
	if err != nil {
		panic(err) // an embedded file that cannot be read
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// build makes the image in a folder of its own and gives it its name at the end. The caller holds dir's lock.
func build(ctx context.Context, d *debian, dir string) (err error) {
	leftovers, err := filepath.Glob(filepath.Join(dir, "new-*"))
	if err != nil {
		return err
	}
	for _, old := range leftovers {
		if err := os.RemoveAll(old); err != nil {
			return err
		}
	}
	work, err := os.MkdirTemp(dir, "new-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()

	name, kernelDeb, err := d.newestKernel(ctx, work)
	if err != nil {
		return err
	}
	busyboxDeb, err := d.download(ctx, work, "busybox-static")
	if err != nil {
		return err
	}
	kernel, err := readDeb(ctx, kernelDeb, func(path string) bool {
		return strings.HasPrefix(path, "boot/vmlinuz-") || strings.HasPrefix(path, "lib/modules/")
	})
	if err != nil {
		return err
	}
	busybox, err := readDeb(ctx, busyboxDeb, func(path string) bool { return path == "bin/busybox" })
	if err != nil {
		return err
	}

	image := filepath.Join(work, "image")
	if err := os.Mkdir(image, 0o755); err != nil {
		return err
	}
	decompress := func(tool string, data []byte) ([]byte, error) {
		if err := d.need(ctx, tool, decompressors[tool]); err != nil {
			return nil, err
		}
		return output(ctx, bytes.NewReader(data), tool, "-dc")
	}
	vmlinux, err := extractVmlinux(kernel.find("boot/vmlinuz-*"), decompress)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	initramfs, err := buildInitramfs(kernel, busybox.find("bin/busybox"), decompress)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for file, data := range map[string][]byte{"vmlinux": vmlinux, "initramfs": initramfs, "package": []byte(name)} {
		if err := os.WriteFile(filepath.Join(image, file), data, 0o644); err != nil {
			return err
		}
	}
	return os.Rename(image, filepath.Join(dir, recipeKey()))
}

// tree holds files of a Debian package by their paths.
type tree map[string][]byte

// find returns a file whose path matches the pattern, or nil.
func (t tree) find(pattern string) []byte {
	for name, data := range t {
		if ok, _ := path.Match(pattern, name); ok {
			return data
		}
	}
	return nil
}

// decompressors maps the programs that turn "-dc" and a stream into the stream's content to their Debian packages.
var decompressors = map[string]string{"xz": "xz-utils", "zstd": "zstd"}
