package staging

import "testing"

// BenchmarkPool is one buffer taken and given back, by one and by all CPUs.
func BenchmarkPool(b *testing.B) {
	p := newPool(b, 64, 4096)
	b.Run("serial", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf, _ := p.TryGet()
			buf.Bytes()[0]++
			buf.Release()
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				buf, _ := p.TryGet()
				buf.Bytes()[0]++
				buf.Release()
			}
		})
	})
}
