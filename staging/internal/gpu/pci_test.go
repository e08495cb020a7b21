package gpu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPCI(t *testing.T) {
	for in, want := range map[string]string{
		"0000:c1:00.0": "0000:c1:00.0", "0000:C1:1F.7": "0000:c1:1f.7", "00000000:65:00.0": "0000:65:00.0", "65:00.0": "0000:65:00.0",
		"10000:01:00.0": "10000:01:00.0",
	} {
		got, err := parsePCI(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got)
	}
	for _, in := range []string{"", "0", "c1:00", "0000:c1:00.8", "0000:c1:20.0", "0000:1c1:00.0", "a:0000:c1:00.0", "0000:c1:00.0.0", "0000:-1:00.0", "../..:00:00.0", "100000000:00:00.0"} {
		_, err := parsePCI(in)
		require.ErrorContains(t, err, "PCI address", in)
	}
}

func TestNode(t *testing.T) {
	sys := t.TempDir()
	for pci, text := range map[string]string{"0000:01:00.0": "1\n", "0000:02:00.0": "-1\n", "0000:03:00.0": "x"} {
		dir := filepath.Join(sys, "bus/pci/devices", pci)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "numa_node"), []byte(text), 0o644))
	}
	require.Equal(t, 1, node(sys, "0000:01:00.0"))
	require.Equal(t, -1, node(sys, "0000:02:00.0"))
	require.Equal(t, -1, node(sys, "0000:03:00.0"))
	require.Equal(t, -1, node(sys, "0000:04:00.0"))
}
