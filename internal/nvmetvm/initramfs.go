package nvmetvm

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// buildInitramfs returns the guest's root file system: busybox, the scripts of guest/, the modules and what they need.
// It is not compressed: the emulated CPU would pay for that at every boot.
func buildInitramfs(kernel tree, busybox []byte, decompress func(tool string, data []byte) ([]byte, error)) ([]byte, error) {
	if busybox == nil {
		return nil, errors.New("busybox-static has no bin/busybox")
	}
	loader := moduleSet{kernel: kernel, decompress: decompress, loaded: map[string]bool{}}
	for _, m := range modules {
		name, params, _ := strings.Cut(m, " ")
		if err := loader.add(name, params); err != nil {
			return nil, err
		}
	}
	var archive cpio
	for _, dir := range []string{"bin", "lib", "modules"} {
		archive.add(dir, 0o040755, nil)
	}
	archive.add("bin/busybox", 0o100755, busybox)
	for file, mode := range map[string]uint32{"init": 0o100755, "lib/nvmet.sh": 0o100644} {
		script, err := recipe.ReadFile("guest/" + path.Base(file))
		if err != nil {
			return nil, err
		}
		archive.add(file, mode, script)
	}
	for _, m := range loader.order {
		archive.add("modules/"+m.name+".ko", 0o100644, m.data)
		fmt.Fprintf(&loader.list, "%s %s\n", m.name, m.params)
	}
	archive.add("modules/order", 0o100644, loader.list.Bytes())
	return archive.close(), nil
}

// moduleSet gathers kernel modules in the order in which they can be loaded.
type moduleSet struct {
	kernel     tree
	decompress func(tool string, data []byte) ([]byte, error)
	loaded     map[string]bool
	order      []module
	list       bytes.Buffer
}

type module struct {
	name, params string
	data         []byte
}

// add adds the module, after all that it depends on. One that is built into the kernel needs nothing.
func (s *moduleSet) add(name, params string) error {
	name = moduleName(name)
	if s.loaded[name] {
		return nil
	}
	s.loaded[name] = true
	data, err := s.read(name)
	if err != nil || data == nil {
		return err
	}
	depends, err := moduleDepends(data)
	if err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	for _, d := range depends {
		if err := s.add(d, ""); err != nil {
			return err
		}
	}
	s.order = append(s.order, module{name, params, data})
	return nil
}

// read returns the module's ELF file, or nil if it is built in.
func (s *moduleSet) read(name string) ([]byte, error) {
	for file, data := range s.kernel {
		stem, suffix, isModule := strings.Cut(path.Base(file), ".ko")
		if !isModule || moduleName(stem) != name {
			continue
		}
		switch suffix {
		case "":
			return data, nil
		case ".xz":
			return s.decompress("xz", data)
		case ".zst":
			return s.decompress("zstd", data)
		}
		return nil, fmt.Errorf("module %s is compressed in an unknown way", file)
	}
	builtin := strings.FieldsFunc(string(s.kernel.find("lib/modules/*/modules.builtin")), func(r rune) bool { return r == '\n' })
	if slices.ContainsFunc(builtin, func(file string) bool {
		return moduleName(strings.TrimSuffix(path.Base(file), ".ko")) == name
	}) {
		return nil, nil
	}
	return nil, fmt.Errorf("the kernel has no module %s", name)
}

// moduleName is the kernel's own spelling of a module's name.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// moduleDepends returns the modules that the ELF file of a module says it depends on.
func moduleDepends(ko []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(ko))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("no .modinfo section")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(field, []byte("depends=")); ok {
			return strings.FieldsFunc(string(list), func(r rune) bool { return r == ',' }), nil
		}
	}
	return nil, nil
}

// cpio is an archive in the "newc" format, as the kernel unpacks it (Linux's Documentation/driver-api/early-userspace).
type cpio struct {
	buf   bytes.Buffer
	inode uint32
}

// add adds a file or folder owned by root; mode includes its type.
func (c *cpio) add(name string, mode uint32, data []byte) {
	c.inode++
	c.buf.WriteString("070701")
	for _, field := range []uint32{
		c.inode, mode, 0, 0, 1 /* links */, 0 /* mtime */, uint32(len(data)), 0, 0, 0, 0, uint32(len(name) + 1), 0, /* checksum */
	} {
		fmt.Fprintf(&c.buf, "%08x", field)
	}
	c.buf.WriteString(name)
	c.buf.WriteByte(0)
	c.pad()
	c.buf.Write(data)
	c.pad()
}

func (c *cpio) pad() {
	for c.buf.Len()%4 != 0 {
		c.buf.WriteByte(0)
	}
}

func (c *cpio) close() []byte {
	c.add("TRAILER!!!", 0, nil)
	return c.buf.Bytes()
}
