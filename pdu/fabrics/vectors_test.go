package fabrics

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A vector is a whole PDU of the project's test vectors. [Nx00] stands for N
// zero bytes, [PAT(n,o)] for n bytes of which byte i is i+o.
type vector struct{ name, sha256, hex string }

// bytes returns the PDU, after comparing it with its checksum.
func (v vector) bytes(t testing.TB) []byte {
	t.Helper()
	var b []byte
	for text := strings.Join(strings.Fields(v.hex), ""); text != ""; {
		run, rest, group := strings.Cut(text, "[")
		x, err := hex.DecodeString(run)
		require.NoError(t, err, v.name)
		b = append(b, x...)
		text = rest
		if group {
			var n, o int
			run, text, _ = strings.Cut(rest, "]")
			if _, err := fmt.Sscanf(run, "PAT(%d,%d)", &n, &o); err == nil {
				for i := range n {
					b = append(b, byte(i+o))
				}
			} else {
				_, err := fmt.Sscanf(run, "%dx00", &n)
				require.NoError(t, err, v.name)
				b = append(b, make([]byte, n)...)
			}
		}
	}
	sum := sha256.Sum256(b)
	require.Equal(t, v.sha256, hex.EncodeToString(sum[:]), "%s: the vector is not copied right", v.name)
	return b
}

var vecConnectAdmin = vector{"CapsuleCmd Connect admin", "4c40105ff6749ceb7d1b903844d5b6b3f61fa9fc21d11c87c0c5e0ab6db5b1d5", `
0403484c500400007f40010001 [28x00] 04000000000001000000001f000000c0d401 [13x00] 178334f8123456789abcdef0123456789abcdef0ffff [238x00]
6e716e2e323031362d30362e696f2e7370646b3a636e6f646531 [230x00]
6e716e2e323031342d30382e6f72672e6e766d657870726573733a757569643a31323334353637382d396162632d646566302d313233342d3536373839616263
64656630 [444x00] 14bac396`}

var vecConnectResp = vector{"CapsuleResp Connect cntlid=1", "5867b99f39f9f03d5a0232de6eb2249a277d0387d0cd0c5b56475ec05167c080", "050118001c00000001000000000000000100000001000000fac876ef"}

var vecPropertyGet = vector{"CapsuleCmd PropertyGet CAP", "37dd2a3f5e81aa1c3c6636f4e445b6073b335d69ac84c260a9623269f78e66d6", "040148004c0000007f40020004 [34x00] 5a01 [23x00] 76bf0d40"}

var vecCAP = vector{"CapsuleResp CAP", "8ab0dc06fb648ba7416ab8c19106b3574ecbb7bc2d87f06d8a502cfb7c035f01", "050118001c0000007f00011e20000008020000000200000065dd5666"}

var vecPropertySet = vector{"CapsuleCmd PropertySet CC=00460001", "c871c7451784d3528a0d28aa6b9dda9ddd9c25448b3a3dc8a2d77a6c579c7889", "040148004c0000007f4003 [36x00] 5a0000000014000000010046 [13x00] cab808c0"}

var vecPropertySetResp = vector{"CapsuleResp PropSet", "7e90069d3a720532f16eb2c4d5cb188390e82e9cb0ff7258cb5b557c5a1eb713", "050118001c00000000000000000000000300000003000000cb1c6530"}

var vecConnectIO = vector{"Connect IO q1", "c67c94456e225ec860b1a1d9b53736e88a2d3ee4333a153af6abef6823b0080a", `
04004848480400007f40100001 [28x00] 04000000000001000001007f [19x00] 123456789abcdef0123456789abcdef001 [239x00]
6e716e2e323031362d30362e696f2e7370646b3a636e6f646531 [230x00]
6e716e2e323031342d30382e6f72672e6e766d657870726573733a757569643a31323334353637382d396162632d646566302d313233342d3536373839616263
64656630 [444x00]`}

var vecConnectIOResp = vector{"CapsuleResp", "f3ec5b768c8f9bb524534556e4029d36e54fb8dbb9da5fd9d1487c448665c426", "050018001800000001000000000000000100000010000000"}

var vecConnectInvalid = vector{"CapsuleResp, Connect Invalid Parameters (IPO 256, IATTR 1), DNR", "e0d1f84ad29d3daccee0531c6465a3e8510c57ad7a743a19609bdc9d8d91bf54", "05001800180000000001010000000000ffff000001000483"}
