//go:build linux

package nvmetvm

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPrepareTwiceIsOnce(t *testing.T) {
	Start(t)
	img, err := Prepare(t.Context(), Config{})
	require.NoError(t, err)
	before, err := os.Stat(img.Vmlinux)
	require.NoError(t, err)
	require.Regexp(t, kernelPackages, img.Package)

	program, err := exec.LookPath(qemu)
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, os.Symlink(program, filepath.Join(bin, qemu)))
	t.Setenv("PATH", bin) // and nothing that could make the image anew
	again, err := Prepare(t.Context(), Config{})
	require.NoError(t, err)
	require.Equal(t, img, again)
	after, err := os.Stat(again.Vmlinux)
	require.NoError(t, err)
	require.Equal(t, before.ModTime(), after.ModTime())

	empty := Config{CacheDir: t.TempDir()}
	require.ErrorContains(t, Available(empty), "no apt-get")
	t.Setenv("PATH", "")
	require.ErrorContains(t, Available(Config{}), "apt-get install "+qemuPackage)
}

func TestPrepareWaitsForAnother(t *testing.T) {
	c := Config{CacheDir: t.TempDir()}
	if err := Available(c); err != nil {
		t.Skip(err)
	}
	unlock, err := lockFile(t.Context(), filepath.Join(c.CacheDir, "lock"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = Prepare(ctx, c)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, c.CacheDir)
	unlock()
	unlock, err = lockFile(t.Context(), filepath.Join(c.CacheDir, "lock"))
	require.NoError(t, err, "the lock was not given back")
	unlock()
}

func TestCacheDir(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/xdg")
	t.Setenv("NVSTAGE_NVMETVM_CACHE", "")
	dir, err := Config{}.cacheDir()
	require.NoError(t, err)
	require.Equal(t, "/xdg/nvstage/nvmetvm", dir)
	t.Setenv("NVSTAGE_NVMETVM_CACHE", "/env")
	dir, err = Config{}.cacheDir()
	require.NoError(t, err)
	require.Equal(t, "/env", dir)
	dir, err = Config{CacheDir: "/config"}.cacheDir()
	require.NoError(t, err)
	require.Equal(t, "/config", dir)
}

func TestNewestKernel(t *testing.T) {
	require.Equal(t, "linux-image-6.12.117+deb12-cloud-amd64", newestKernel([]string{
		"linux-image-6.12.9+deb12-cloud-amd64",
		"linux-image-6.12.117+deb12-cloud-amd64",
		"linux-image-6.12.95+deb12.1-cloud-amd64",
		"linux-image-6.12.118+deb12-amd64",
		"linux-image-6.12.118+deb12-cloud-amd64-dbg",
		"linux-image-6.12.118+deb12-cloud-amd64-unsigned",
		"linux-image-6.12.118+deb12-cloud-arm64",
		"linux-image-6.120.1+deb12-cloud-amd64",
	}))
	require.Equal(t, "linux-image-6.12.48+deb13.2-cloud-amd64", newestKernel([]string{
		"linux-image-6.12.48+deb13.2-cloud-amd64", "linux-image-6.12.48+deb13-cloud-amd64",
	}))
	require.Empty(t, newestKernel(nil))
}

// bzImage returns a made-up kernel image with that payload and decompressed length.
func bzImage(payload string, size uint32) []byte {
	image := make([]byte, 3*512+16, 4096)
	image[0x1f1] = 2
	copy(image[0x202:], "HdrS")
	binary.LittleEndian.PutUint32(image[0x248:], 16)
	binary.LittleEndian.PutUint32(image[0x24c:], uint32(len(payload)+4))
	image = append(image, payload...)
	image = binary.LittleEndian.AppendUint32(image, size)
	return append(image, "a signature"...)
}

func TestExtractVmlinux(t *testing.T) {
	const elf = "\x7fELF and so on"
	var used, given string
	decompress := func(tool string, data []byte) ([]byte, error) {
		used, given = tool, string(data)
		return []byte(elf), nil
	}
	for tool, payload := range map[string]string{"zstd": "\x28\xb5\x2f\xfdpayload", "xz": "\xfd7zXZ\x00payload"} {
		vmlinux, err := extractVmlinux(bzImage(payload, uint32(len(elf))), decompress)
		require.NoError(t, err)
		require.Equal(t, elf, string(vmlinux))
		require.Equal(t, tool, used)
		require.Equal(t, payload, given)

		_, err = extractVmlinux(bzImage(payload, 5), decompress)
		require.ErrorContains(t, err, "not an ELF file of 5 bytes")
		_, err = extractVmlinux(bzImage(payload, 5), func(string, []byte) ([]byte, error) { return nil, errors.ErrUnsupported })
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	_, err := extractVmlinux(bzImage("other payload", 5), decompress)
	require.ErrorContains(t, err, "unknown way")
	_, err = extractVmlinux(nil, decompress)
	require.ErrorContains(t, err, "not a bzImage")
	whole := bzImage("\x28\xb5\x2f\xfdpayload", 5)
	for n := range len(whole) - len("a signature") {
		_, err := extractVmlinux(whole[:n], decompress)
		require.Error(t, err, n)
	}
}

func TestModuleNotThere(t *testing.T) {
	kernel := tree{
		"lib/modules/6.12/modules.builtin":               []byte("kernel/drivers/virtio/virtio_pci.ko\n"),
		"lib/modules/6.12/modules.builtin.modinfo":       []byte("nvmet"),
		"lib/modules/6.12/kernel/drivers/nvmet-tcp.ko.Z": nil,
	}
	s := moduleSet{kernel: kernel, loaded: map[string]bool{}}
	require.NoError(t, s.add("virtio-pci", ""), "built in")
	require.Empty(t, s.order)
	require.ErrorContains(t, s.add("nvmet", ""), "no module nvmet")
	require.ErrorContains(t, s.add("nvmet-tcp", ""), "nvmet-tcp.ko.Z is compressed in an unknown way")
}
