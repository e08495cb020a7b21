// Package staging brings model shards from block devices into memory that a GPU can read.
//
// Three parts, each usable alone:
//
//   - [Pool] is a fixed amount of pinned staging memory, cut into buffers of one size.
//   - [Header] and [GGUF] are the headers of safetensors and GGUF shards: parsed as strictly as the reference
//     implementations do, and written. [Index] says which file of a model has which tensor; a [RawShard] needs no header.
//   - [Loader] streams the tensors of one or several shards over all queues of their sources through the
//     pool's buffers, either into a [Device] ([Loader.Stream]) or to the consumer itself ([Loader.Pieces]).
//
// The usual program needs four calls:
//
//	pool, err := staging.NewPool(staging.PoolConfig{Bytes: 256 << 20})
//	shard, err := staging.OpenShard(ctx, ns)
//	for t, err := range shard.Stream(ctx, pool, staging.Host{}) {
//		use(t.Name, t.DType, t.Shape, t.Memory) // t.Memory is the caller's until…
//		t.Release()
//	}
//
// # Who owns a buffer
//
// A staging buffer belongs to the source from the moment a [Read] is handed out until it is completed, then to the device
// until its copy is done (or, with Pieces, to the consumer until it releases the last piece), then to the pool. No
// other moment exists at which a buffer may be written, and the pool never grows.
package staging
