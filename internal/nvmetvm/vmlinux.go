package nvmetvm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// extractVmlinux returns the ELF kernel inside a bzImage (Linux's Documentation/arch/x86/boot.rst). QEMU boots it through
// its PVH entry, which spares the emulated CPU the decompression.
func extractVmlinux(bzImage []byte, decompress func(tool string, data []byte) ([]byte, error)) ([]byte, error) {
	const (
		setupSects    = 0x1f1 // 512-byte sectors of real-mode code after the boot sector
		magic         = 0x202 // "HdrS"
		payloadOffset = 0x248 // from the end of the real-mode code
		payloadLength = 0x24c
	)
	if len(bzImage) < payloadLength+4 || string(bzImage[magic:magic+4]) != "HdrS" {
		return nil, errors.New("the kernel is not a bzImage")
	}
	begin := (uint64(bzImage[setupSects])+1)*512 + uint64(binary.LittleEndian.Uint32(bzImage[payloadOffset:]))
	end := begin + uint64(binary.LittleEndian.Uint32(bzImage[payloadLength:]))
	// The payload ends with four bytes that say how long it is once decompressed.
	if end > uint64(len(bzImage)) || end < begin+8 {
		return nil, fmt.Errorf("the kernel's payload [%d, %d) is not within its %d bytes", begin, end, len(bzImage))
	}
	payload, size := bzImage[begin:end-4], binary.LittleEndian.Uint32(bzImage[end-4:])
	var tool string
	switch {
	case bytes.HasPrefix(payload, []byte("\x28\xb5\x2f\xfd")):
		tool = "zstd"
	case bytes.HasPrefix(payload, []byte("\xfd7zXZ\x00")):
		tool = "xz"
	default:
		return nil, fmt.Errorf("the kernel's payload is compressed in an unknown way (it begins %x)", payload[:4])
	}
	vmlinux, err := decompress(tool, payload)
	if err != nil {
		return nil, err
	}
	if uint32(len(vmlinux)) != size || !bytes.HasPrefix(vmlinux, []byte("\x7fELF")) {
		return nil, fmt.Errorf("the kernel's payload is not an ELF file of %d bytes (got %d)", size, len(vmlinux))
	}
	return vmlinux, nil
}
