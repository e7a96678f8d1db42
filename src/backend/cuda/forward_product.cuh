// Products inside the forward kernel: the two streaming warps and what a computing warp does.
#pragma once

#include "backend/cuda/forward_memory.cuh"
#include "backend/cuda/row_product.cuh"

namespace tensorfold::backend::cuda {

/// A place in a ring of `Count` parts that moves part by part.
template <uint32_t Count>
struct RingPlace {
  uint32_t at = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++at == Count) {
      at = 0;
      parity ^= 1;
    }
  }
};
struct RingPlaces {
  RingPlace<kStages> stage;
  RingPlace<kPieces> piece;
};

/// Addresses in shared memory.
struct Ring {
  uint32_t memory;
  __device__ uint32_t stage(uint32_t i) const { return memory + kRingAt + i * kStageBytes; }
  __device__ uint32_t stage_full(uint32_t i) const { return memory + kBarriersAt + i * 16; }
  __device__ uint32_t stage_empty(uint32_t i) const { return memory + kBarriersAt + i * 16 + 8; }
  __device__ uint32_t piece(uint32_t i) const { return memory + i * kPieceBytes; }
  __device__ uint32_t piece_full(uint32_t i) const { return memory + kBarriersAt + (kStages + i) * 16; }
  __device__ uint32_t piece_empty(uint32_t i) const { return memory + kBarriersAt + (kStages + i) * 16 + 8; }
  /// One arrival a product that has rows for this thread block: they may be read, and the scratch memory is free.
  __device__ uint32_t rows_allowed() const { return memory + kRowsAllowedAt; }
};

/// Calls use(stream, block, group, end) for each pass of this thread block, product by product, and
/// use_attention(stream) where an attention operation stands between them.
template <typename Use, typename UseAttention>
__device__ inline void for_each_pass(const ForwardArguments& a, Use&& use, UseAttention&& use_attention) {
  if (a.product_count == 0) return;
  ProductStream next = a.products[0];
  for (int i = 0; i < a.product_count; ++i) {
    const ProductStream s = next;
    if (i + 1 < a.product_count) next = a.products[i + 1];
    if (s.attention >= 0) {
      use_attention(s);
      continue;
    }
    const int passes = s.blocks * s.slices;
    const int end = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x) + 1);
    for (int pass = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x)); pass < end; ++pass)
      use(s, pass % s.blocks, slice_begin(s.groups, s.slices, pass / s.blocks),
          slice_begin(s.groups, s.slices, pass / s.blocks + 1));
  }
}

/// One thread: the weights of all products, and what stream_attention(operation, place) copies between them.
template <typename StreamAttention>
__device__ inline void stream_weights(const ForwardArguments& a, const Ring& ring, StreamAttention&& stream_attention) {
  const uint64_t policy = stream_policy();
  RingPlace<kStages> place;
  const auto stream_pass = [&](const ProductStream& s, int block, int group, int end) {
    const uint8_t* from = s.weights + (static_cast<int64_t>(block) * s.groups + group) * s.group_stride;
    for (; group < end; group += s.ring_groups) {
      const auto bytes = static_cast<uint32_t>(min(s.ring_groups, end - group) * s.group_stride);
      barrier_wait(ring.stage_empty(place.at), place.parity ^ 1U);
      barrier_expect(ring.stage_full(place.at), bytes);
      bulk_copy_once(ring.stage(place.at), from, bytes, ring.stage_full(place.at), policy);
      from += bytes;
      place.advance();
    }
  };
  for_each_pass(a, stream_pass, [&](const ProductStream& s) { place = stream_attention(s.attention, place); });
}

/// One thread: the rows of all products, each when its phase has begun.
template <int RowTiles>
__device__ inline void stream_rows(const ForwardArguments& a, const Ring& ring) {
  constexpr int piece_groups = kPieceGroups<RowTiles>;
  RingPlace<kPieces> place;
  int phase = -1;
  uint32_t parity = 0;
  for_each_pass(
      a,
      [&](const ProductStream& s, int, int group, int end) {
        if (s.rows == nullptr) return;
        if (s.phase != phase) {
          phase = s.phase;
          barrier_wait(ring.rows_allowed(), parity);
          parity ^= 1;
          proxy_fence();
        }
        for (; group < end; group += piece_groups) {
          const auto bytes = static_cast<uint32_t>(min(piece_groups, end - group)) * 1024U;
          barrier_wait(ring.piece_empty(place.at), place.parity ^ 1U);
          barrier_expect(ring.piece_full(place.at), bytes * RowTiles);
#pragma unroll
          for (int n = 0; n < RowTiles; ++n)
            bulk_copy(ring.piece(place.at) + static_cast<uint32_t>(n * piece_groups) * 1024U,
                      s.rows + n * s.row_tile_bytes + static_cast<int64_t>(group) * 1024, bytes,
                      ring.piece_full(place.at));
          place.advance();
        }
      },
      [](const ProductStream&) {});
}

/// A tile's codes, scales and biases of one group, as a lane holds them.
struct PackedGroup {
  uint4 words;
  uint2 pairs;
};

/// `codes`, `scales`: this lane's, in shared memory.
__device__ inline void load_packed(PackedGroup& to, uint32_t codes, uint32_t scales) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(to.words.x), "=r"(to.words.y), "=r"(to.words.z), "=r"(to.words.w)
               : "r"(codes)
               : "memory");
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(to.pairs.x), "=r"(to.pairs.y) : "r"(scales) : "memory");
}

/// Half a group's rows: the fragments of two steps for each row tile.
template <int RowTiles>
__device__ inline void load_half(uint32_t (&rows)[RowTiles][4], uint32_t at) {
  constexpr uint32_t row_stride = kPieceGroups<RowTiles> * 1024U;
#pragma unroll
  for (int n = 0; n < RowTiles; ++n) load_matrices(rows[n], at + static_cast<uint32_t>(n) * row_stride);
}

/// A group's scales and biases, each twice in a word.
struct Scales {
  uint32_t low;
  uint32_t low_bias;
  uint32_t high;
  uint32_t high_bias;
  __device__ explicit Scales(const uint2& pairs)
      : low(both_low(pairs.x)), low_bias(both_high(pairs.x)), high(both_low(pairs.y)), high_bias(both_high(pairs.y)) {}
};

__device__ inline void unpack(uint32_t (&a)[4], uint32_t word, const Scales& s) {
  affine_fragment(a, word, s.low, s.low_bias, s.high, s.high_bias);
}

/// Step 0 or 1 of half a group.
template <int RowTiles>
__device__ inline void multiply_step(float (&sum)[RowTiles][4], const uint32_t (&a)[4],
                                     const uint32_t (&rows)[RowTiles][4], int step) {
#pragma unroll
  for (int n = 0; n < RowTiles; ++n) mma_step(sum[n], a, rows[n][step * 2], rows[n][step * 2 + 1]);
}

/// What one warp reads of the two rings during a pass: where the current group lies.
template <int RowTiles>
struct PassReader {
  const Ring ring;
  RingPlaces places;
  int lane;
  int ring_groups;
  uint32_t group_stride;
  bool resident;  ///< all rows lie in the ring's memory, one group after another; no barriers tell
  int left = 0;
  int in_stage = 0;
  int in_piece = 0;
  uint32_t weights = 0;  ///< the current group, shared memory
  uint32_t rows = 0;

  __device__ void open_stage() {
    barrier_wait(ring.stage_full(places.stage.at), places.stage.parity);
    weights = ring.stage(places.stage.at);
    in_stage = min(ring_groups, left);
  }
  __device__ void open_piece(int group) {
    if (resident) {
      rows = ring.piece(0) + static_cast<uint32_t>(group) * 1024U;
      in_piece = left;
      return;
    }
    barrier_wait(ring.piece_full(places.piece.at), places.piece.parity);
    rows = ring.piece(places.piece.at);
    in_piece = min(kPieceGroups<RowTiles>, left);
  }
  /// Groups [group, end) of the product.
  __device__ void begin(int group, int end) {
    left = end - group;
    open_piece(group);
    open_stage();
  }
  /// Groups up to the end of the stage or of the piece.
  __device__ int run() const { return min(in_stage, in_piece); }
  /// `count` groups further, at most run(). What the warp has read is in registers.
  __device__ void advance(int count) {
    left -= count;
    in_stage -= count;
    in_piece -= count;
    weights += static_cast<uint32_t>(count) * group_stride;
    rows += static_cast<uint32_t>(count) * 1024U;
    __syncwarp();
    if (in_stage == 0) {
      if (lane == 0) barrier_arrive(ring.stage_empty(places.stage.at));
      places.stage.advance();
      if (left > 0) open_stage();
    }
    if (in_piece == 0 && !resident) {
      if (lane == 0) barrier_arrive(ring.piece_empty(places.piece.at));
      places.piece.advance();
      if (left > 0) open_piece(0);
    }
  }
};

/// A warp without a tile in this pass keeps the rings' counts.
template <int RowTiles>
__device__ inline void skip_pass(PassReader<RowTiles>& reader, int group, int end) {
  reader.begin(group, end);
#pragma unroll 1
  while (reader.left > 0) reader.advance(reader.run());
}

/// The chain of one pass. Between the steps of a group, the next fragments are loaded and unpacked.
template <int RowTiles>
__device__ inline void pass_chain(float (&sum)[RowTiles][4], PassReader<RowTiles>& reader, int group, int end,
                                  int warp) {
  const auto codes_at = static_cast<uint32_t>(warp * group_bytes(WeightFormat::affine4) + reader.lane * 16);
  const auto scales_at = static_cast<uint32_t>(warp * group_bytes(WeightFormat::affine4) + 512 + (reader.lane / 4) * 8);
  const auto rows_at = static_cast<uint32_t>(reader.lane * 16);
  PackedGroup packed;
  uint32_t a[2][4];  // of the first half
  uint32_t b[2][4];
  uint32_t first[RowTiles][4];
  uint32_t second[RowTiles][4];
  reader.begin(group, end);
  load_packed(packed, reader.weights + codes_at, reader.weights + scales_at);
  load_half<RowTiles>(first, reader.rows + rows_at);
  Scales scales(packed.pairs);
  unpack(a[0], packed.words.x, scales);
  unpack(a[1], packed.words.y, scales);
#pragma unroll 1
  while (true) {
    const int run = reader.run();
    uint32_t codes_from = reader.weights + codes_at;
    uint32_t scales_from = reader.weights + scales_at;
    uint32_t rows_from = reader.rows + rows_at;
#pragma unroll 2
    for (int i = 1; i < run; ++i) {
      codes_from += reader.group_stride;
      scales_from += reader.group_stride;
      load_half<RowTiles>(second, rows_from + 512);
      multiply_step<RowTiles>(sum, a[0], first, 0);
      unpack(b[0], packed.words.z, scales);
      multiply_step<RowTiles>(sum, a[1], first, 1);
      unpack(b[1], packed.words.w, scales);
      load_packed(packed, codes_from, scales_from);
      rows_from += 1024;
      load_half<RowTiles>(first, rows_from);
      multiply_step<RowTiles>(sum, b[0], second, 0);
      scales = Scales(packed.pairs);
      unpack(a[0], packed.words.x, scales);
      multiply_step<RowTiles>(sum, b[1], second, 1);
      unpack(a[1], packed.words.y, scales);
    }
    load_half<RowTiles>(second, rows_from + 512);
    multiply_step<RowTiles>(sum, a[0], first, 0);
    unpack(b[0], packed.words.z, scales);
    multiply_step<RowTiles>(sum, a[1], first, 1);
    unpack(b[1], packed.words.w, scales);
    reader.advance(run);
    if (reader.left == 0) break;
    load_packed(packed, reader.weights + codes_at, reader.weights + scales_at);
    load_half<RowTiles>(first, reader.rows + rows_at);
    multiply_step<RowTiles>(sum, b[0], second, 0);
    scales = Scales(packed.pairs);
    unpack(a[0], packed.words.x, scales);
    multiply_step<RowTiles>(sum, b[1], second, 1);
    unpack(a[1], packed.words.y, scales);
  }
  multiply_step<RowTiles>(sum, b[0], second, 0);
  multiply_step<RowTiles>(sum, b[1], second, 1);
}

/// The same for bf16 weights, which are fragments as they lie.
template <int RowTiles>
__device__ inline void dense_pass_chain(float (&sum)[RowTiles][4], PassReader<RowTiles>& reader, int group, int end,
                                        int warp) {
  constexpr uint32_t row_stride = kPieceGroups<RowTiles> * 1024U;
  float sums[kTilesAWarp][RowTiles][4] = {};
  reader.begin(group, end);
#pragma unroll 1
  while (reader.left > 0) {
    const int run = reader.run();
    const uint8_t* weights =
        forward_memory() + (reader.weights - reader.ring.memory) + warp * group_bytes(WeightFormat::dense);
    stage_chain<WeightFormat::dense, RowTiles, 1>(sums, weights, static_cast<int>(reader.group_stride), reader.rows,
                                                  row_stride, run, reader.lane);
    reader.advance(run);
  }
#pragma unroll
  for (int n = 0; n < RowTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[n][i] = sums[0][n][i];
}

/// This warp's share of a product.
template <WeightFormat Format, int RowTiles>
__device__ inline RingPlaces multiply_passes(const ProductWork& work, RingPlaces places) {
  const RowProduct& p = work.product;
  const PackedWeights w = p.weights;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int exist = *p.row_count - p.first_row;
  const int passes = w.blocks * w.slices;
  const int begin = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x));
  const int last = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x) + 1);
  PassReader<RowTiles> reader{Ring{shared_address(forward_memory())},
                              places,
                              lane,
                              work.ring_groups,
                              static_cast<uint32_t>(w.block_tiles * group_bytes(Format)),
                              RowTiles == 1 && work.norm.weight != nullptr};
  if (threadIdx.x == 0 && begin < last && !reader.resident) {
    proxy_fence();
    barrier_arrive(reader.ring.rows_allowed());
  }
#pragma unroll 1
  for (int index = begin; index < last; ++index) {
    const Pass pass = find_pass(w, index);
    const int tile = pass.block * w.block_tiles + warp;
    if (warp >= w.block_tiles || tile >= w.tiles) {
      skip_pass(reader, pass.group, pass.end);
      continue;
    }
    float before[RowTiles][4];
    if constexpr (RowTiles <= 2) load_residual<RowTiles>(p, before, tile, p.first_row, exist, lane);
    float sum[RowTiles][4] = {};
    if constexpr (Format == WeightFormat::affine4)
      pass_chain<RowTiles>(sum, reader, pass.group, pass.end, warp);
    else
      dense_pass_chain<RowTiles>(sum, reader, pass.group, pass.end, warp);
    if (w.slices > 1 && !add_slices<RowTiles>(p, sum, pass.slice, tile, lane)) continue;
    if constexpr (RowTiles > 2) load_residual<RowTiles>(p, before, tile, p.first_row, exist, lane);
    write_outputs<RowTiles>(p, sum, before, tile, p.first_row, exist, lane);
  }
  return reader.places;
}

}  // namespace tensorfold::backend::cuda
