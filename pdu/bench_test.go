package pdu

import (
	"fmt"
	"testing"
)

func BenchmarkDigest(b *testing.B) {
	for _, n := range []int{72, 4 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			data := pat(n, 0)
			b.SetBytes(int64(n))
			for b.Loop() {
				Digest(data)
			}
		})
	}
}

// BenchmarkEncode builds headers alone, as a sender does, and C2HData whole.
func BenchmarkEncode(b *testing.B) {
	for _, dgst := range []Digests{{}, both} {
		l := Layout{Digests: dgst}
		buf := make([]byte, 0, 1<<21)
		b.Run("CapsuleCmd/"+dgst.String(), func(b *testing.B) {
			cmd := command(fields{2: uint16(1)})
			for b.Loop() {
				buf = cmd.AppendHeader(buf[:0], l, 0)
			}
			b.SetBytes(int64(len(buf)))
		})
		for _, n := range []int{4 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("C2HData/%s/%d", dgst, n), func(b *testing.B) {
				data := pat(n, 0)
				d := Data{Type: TypeC2HData, Flags: FlagLast | FlagSuccess, CCCID: 1}
				b.SetBytes(int64(n))
				for b.Loop() {
					buf = d.Append(buf[:0], l, data)
				}
			})
		}
	}
}

// BenchmarkDecode takes whole PDUs apart: common header checked, digests compared, fields read.
func BenchmarkDecode(b *testing.B) {
	for _, dgst := range []Digests{{}, both} {
		l := Layout{Digests: dgst}
		b.Run("CapsuleCmd/"+dgst.String(), func(b *testing.B) {
			wire := command(fields{2: uint16(1)}).Append(nil, l, nil)
			f := Framing{Role: Controller, Digests: dgst, Ready: true}
			var cmd CapsuleCmd
			b.SetBytes(int64(len(wire)))
			for b.Loop() {
				raw, _, err := f.Split(wire)
				if err != nil || cmd.Decode(raw.Header) != nil {
					b.Fatal(err)
				}
			}
		})
		for _, n := range []int{4 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("C2HData/%s/%d", dgst, n), func(b *testing.B) {
				d := Data{Type: TypeC2HData, Flags: FlagLast | FlagSuccess, CCCID: 1}
				wire := d.Append(nil, l, pat(n, 0))
				f := Framing{Role: Host, Digests: dgst, Ready: true}
				b.SetBytes(int64(n))
				for b.Loop() {
					raw, _, err := f.Split(wire)
					if err != nil || raw.BadData || d.Decode(raw.Header) != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
