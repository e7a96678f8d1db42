// Products inside the forward kernel: the two streaming warps and what a computing warp does.
#pragma once

#include "backend/cuda/forward_finish.cuh"
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
  __device__ void advance(uint32_t parts) {
    at += parts;
    parity ^= at / Count & 1U;
    at %= Count;
  }
};
struct RingPlaces {
  RingPlace<kStages> stage;
  RingPlace<kPieces> piece;
  uint32_t scales_parity = 0;  ///< of the barrier for the next rows' scales
};

/// Places in one word, as a function takes and returns them.
__device__ inline uint32_t packed_places(const RingPlaces& p) {
  return p.stage.at | p.stage.parity << 7 | p.piece.at << 8 | p.piece.parity << 15 | p.scales_parity << 16;
}
__device__ inline RingPlaces unpacked_places(uint32_t word) {
  return {{word & 0x7FU, word >> 7 & 1U}, {word >> 8 & 0x7FU, word >> 15 & 1U}, word >> 16 & 1U};
}

/// Addresses in shared memory.
struct Ring {
  uint32_t memory;
  __device__ uint32_t stage(uint32_t i) const { return memory + kRingAt + i * kStageBytes; }
  __device__ uint32_t stage_full(uint32_t i) const { return memory + kBarriersAt + i * 16; }
  __device__ uint32_t stage_empty(uint32_t i) const { return memory + kBarriersAt + i * 16 + 8; }
  __device__ uint32_t piece(uint32_t i) const { return memory + i * kPieceBytes; }
  __device__ uint32_t piece_full(uint32_t i) const { return memory + kBarriersAt + (kStages + i) * 16; }
  __device__ uint32_t piece_empty(uint32_t i) const { return memory + kBarriersAt + (kStages + i) * 16 + 8; }
  __device__ uint32_t scales_made() const { return memory + kBarriersAt + (kStages + kPieces) * 16; }
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
    for (; group < end; group += s.stage_groups) {
      const auto bytes = static_cast<uint32_t>(min(s.stage_groups, end - group) * s.group_stride);
      barrier_wait(ring.stage_empty(place.at), place.parity ^ 1U);
      barrier_expect(ring.stage_full(place.at), bytes);
      bulk_copy_once(ring.stage(place.at), from, bytes, ring.stage_full(place.at), policy);
      from += bytes;
      place.advance();
    }
  };
  for_each_pass(a, stream_pass, [&](const ProductStream& s) { place = stream_attention(s.attention, place); });
}

/// One thread: the rows of all products, each when its phase has begun: then this thread block too has ended the phase
/// before, and the scratch memory is free.
template <int RowTiles>
__device__ inline void stream_rows(const ForwardArguments& a, const Ring& ring) {
  RingPlace<kPieces> place;
  int phase = -1;
  for_each_pass(
      a,
      [&](const ProductStream& s, int, int group, int end) {
        if (s.phase != phase) {
          phase = s.phase;
          wait_arrivals(a.arrivals, a.before + static_cast<uint32_t>(phase) * gridDim.x);
          proxy_fence();
        }
        for (; group < end; group += s.piece_groups) {
          const auto bytes = static_cast<uint32_t>(min(s.piece_groups, end - group)) * 1024U;
          barrier_wait(ring.piece_empty(place.at), place.parity ^ 1U);
          barrier_expect(ring.piece_full(place.at), bytes * RowTiles);
#pragma unroll
          for (int n = 0; n < RowTiles; ++n)
            bulk_copy(ring.piece(place.at) + static_cast<uint32_t>(n * kPieceGroups<RowTiles>) * 1024U,
                      s.rows + n * s.row_tile_bytes + static_cast<int64_t>(group) * 1024, bytes,
                      ring.piece_full(place.at));
          place.advance();
        }
      },
      [](const ProductStream&) {});
}

/// Half a group's rows: the fragments of two steps for each row tile.
template <int RowTiles>
__device__ inline void load_half(uint32_t (&rows)[RowTiles][4], uint32_t at) {
  constexpr uint32_t row_stride = kPieceGroups<RowTiles> * 1024U;
#pragma unroll
  for (int n = 0; n < RowTiles; ++n) load_matrices(rows[n], at + static_cast<uint32_t>(n) * row_stride);
}

/// Step 0 or 1 of half a group.
template <int RowTiles>
__device__ inline void multiply_step(float (&sum)[RowTiles][4], const uint32_t (&a)[4],
                                     const uint32_t (&rows)[RowTiles][4], int step) {
#pragma unroll
  for (int n = 0; n < RowTiles; ++n) mma_step(sum[n], a, rows[n][step * 2], rows[n][step * 2 + 1]);
}

/// What one warp reads of the two rings during a pass: a stretch of groups, which ends where a stage or the pass ends.
/// A piece of rows is a whole number of stages.
template <int RowTiles>
struct PassReader {
  const uint32_t memory;  ///< shared address
  RingPlaces places;
  const int lane;
  const int stage_groups;
  const int piece_groups;
  const uint32_t group_stride;
  /// Of this warp when it has done with a stage or a piece. The first warp arrives for those that never have a tile.
  const uint32_t arrivals;
  int left = 0;
  int in_piece = 0;
  int stretch = 0;       ///< groups of the current stretch
  uint32_t weights = 0;  ///< its first group, shared memory
  uint32_t rows = 0;

  __device__ void open_stage() {
    const Ring ring{memory};
    weights = ring.stage(places.stage.at);
    stretch = min(stage_groups, left);
    barrier_wait(ring.stage_full(places.stage.at), places.stage.parity);
  }
  __device__ void open_piece() {
    const Ring ring{memory};
    rows = ring.piece(places.piece.at);
    in_piece = min(piece_groups, left);
    barrier_wait(ring.piece_full(places.piece.at), places.piece.parity);
  }
  __device__ void begin(int groups) {
    left = groups;
    open_piece();
    open_stage();
  }
  /// The next stretch; false at the end of the pass. The arrivals come after the reads of all lanes.
  __device__ bool next() {
    const Ring ring{memory};
    __syncwarp();
    if (lane == 0) barrier_arrive_times(ring.stage_empty(places.stage.at), arrivals);
    places.stage.advance();
    left -= stretch;
    in_piece -= stretch;
    rows += static_cast<uint32_t>(stretch) * 1024U;
    if (in_piece == 0) {
      if (lane == 0) barrier_arrive_times(ring.piece_empty(places.piece.at), arrivals);
      places.piece.advance();
      if (left == 0) return false;
      open_piece();
    }
    open_stage();
    return true;
  }
  /// Past a pass of which this warp never reads anything.
  __device__ void skip(int groups) {
    places.stage.advance(static_cast<uint32_t>((groups + stage_groups - 1) / stage_groups));
    places.piece.advance(static_cast<uint32_t>((groups + piece_groups - 1) / piece_groups));
  }
};

/// The chain of one pass of a tile. The next group's weights are on their way while the last two steps of a group run;
/// fragments are unpacked between steps.
template <int RowTiles>
__device__ inline void pass_chain(float (&sum)[RowTiles][4], PassReader<RowTiles>& reader, int groups, int warp) {
  const auto codes_at = static_cast<uint32_t>(warp * group_bytes(WeightFormat::affine4) + reader.lane * 16);
  const auto scales_at = static_cast<uint32_t>(warp * group_bytes(WeightFormat::affine4) + 512 + (reader.lane / 4) * 8);
  const auto rows_at = static_cast<uint32_t>(reader.lane * 16);
  AffineGroup packed;
  uint32_t a[2][4];  // of the first half
  uint32_t b[2][4];
  uint32_t first[RowTiles][4];
  uint32_t second[RowTiles][4];
  reader.begin(groups);
  int stretch = reader.stretch;
  uint32_t codes = reader.weights + codes_at;
  uint32_t scales = reader.weights + scales_at;
  uint32_t rows = reader.rows + rows_at;
  load_affine(packed, codes, scales);
  load_half<RowTiles>(first, rows);
  AffineScales pair_scales(packed.pairs);
  affine_fragment(a[0], packed.words.x, pair_scales);
  affine_fragment(a[1], packed.words.y, pair_scales);
#pragma unroll 1
  while (true) {
    load_half<RowTiles>(second, rows + 512);
    multiply_step<RowTiles>(sum, a[0], first, 0);
    affine_fragment(b[0], packed.words.z, pair_scales);
    multiply_step<RowTiles>(sum, a[1], first, 1);
    affine_fragment(b[1], packed.words.w, pair_scales);
    if (--stretch > 0) {
      codes += reader.group_stride;
      scales += reader.group_stride;
      rows += 1024;
    } else {
      if (!reader.next()) break;
      stretch = reader.stretch;
      codes = reader.weights + codes_at;
      scales = reader.weights + scales_at;
      rows = reader.rows + rows_at;
    }
    load_affine(packed, codes, scales);
    load_half<RowTiles>(first, rows);
    multiply_step<RowTiles>(sum, b[0], second, 0);
    multiply_step<RowTiles>(sum, b[1], second, 1);
    pair_scales = AffineScales(packed.pairs);
    affine_fragment(a[0], packed.words.x, pair_scales);
    affine_fragment(a[1], packed.words.y, pair_scales);
  }
  multiply_step<RowTiles>(sum, b[0], second, 0);
  multiply_step<RowTiles>(sum, b[1], second, 1);
}

/// The same for bf16 weights, which are fragments as they lie.
template <int RowTiles>
__device__ inline void dense_pass_chain(float (&sum)[RowTiles][4], PassReader<RowTiles>& reader, int groups, int warp) {
  constexpr uint32_t row_stride = kPieceGroups<RowTiles> * 1024U;
  float sums[kTilesAWarp][RowTiles][4] = {};
  reader.begin(groups);
#pragma unroll 1
  do {
    const uint8_t* weights =
        forward_memory() + (reader.weights - reader.memory) + warp * group_bytes(WeightFormat::dense);
    stage_chain<WeightFormat::dense, RowTiles, 1>(sums, weights, static_cast<int>(reader.group_stride), reader.rows,
                                                  row_stride, reader.stretch, reader.lane);
  } while (reader.next());
#pragma unroll
  for (int n = 0; n < RowTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[n][i] = sums[0][n][i];
}

/// This warp's share of a product.
template <WeightFormat Format, int RowTiles>
__device__ __noinline__ uint32_t multiply_passes(int operation, uint32_t packed) {
  const auto& work = operation_work<ProductWork>(operation);
  const RowProduct& p = work.product;
  const PackedWeights w = p.weights;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int passes = w.blocks * w.slices;
  const int begin = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x));
  const int last = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x) + 1);
  const uint32_t memory = shared_address(forward_memory());
  if (begin == last) return packed;
  const uint32_t scales_made = Ring{memory}.scales_made();
  RingPlaces places = unpacked_places(packed);
  const uint32_t scales_parity = places.scales_parity;
  bool scales_due = work.squares != nullptr;
  if (scales_due) {
    places.scales_parity ^= 1U;
    if (warp == kScaleWarp) {
      make_row_scales(work, rows_of(p), lane);
      if (lane == 0) barrier_arrive(scales_made);
    }
  }
  PassReader<RowTiles> reader{memory,
                              places,
                              lane,
                              work.stage_groups,
                              work.piece_groups,
                              static_cast<uint32_t>(w.block_tiles * group_bytes(Format)),
                              static_cast<uint32_t>(warp == 0 ? 1 + kConsumerWarps - w.block_tiles : 1)};
#pragma unroll 1
  for (int index = begin; index < last; ++index) {
    const Pass pass = find_pass(w, index);
    const int groups = pass.end - pass.group;
    const int tile = pass.block * w.block_tiles + warp;
    if (warp >= w.block_tiles) {
      reader.skip(groups);
      continue;
    }
    if (tile >= w.tiles) {  // the last block may be lower: this warp keeps the rings' counts
      reader.begin(groups);
      while (reader.next()) {
      }
      continue;
    }
    Sums<RowTiles> sums{};
    if constexpr (Format == WeightFormat::affine4)
      pass_chain<RowTiles>(sums.at, reader, groups, warp);
    else
      dense_pass_chain<RowTiles>(sums.at, reader, groups, warp);
    if (w.slices > 1) {
      leave_slice<RowTiles>(p, sums.at, pass.slice, tile, lane);
      continue;
    }
    if (scales_due) barrier_wait(scales_made, scales_parity);
    scales_due = false;
    finish_tile<RowTiles>(operation, sums, tile);
  }
  if (w.slices > 1 && warp < w.block_tiles) {  // nobody waits for a slice before all its own are left
    if (scales_due) barrier_wait(scales_made, scales_parity);
    scales_due = false;
#pragma unroll 1
    for (int index = begin; index < last; ++index) {
      const Pass pass = find_pass(w, index);
      const int tile = pass.block * w.block_tiles + warp;
      if (tile < w.tiles && owner_of(w, tile) == pass.slice) finish_tile<RowTiles>(operation, {}, tile);
    }
  }
  return packed_places(reader.places);
}

}  // namespace tensorfold::backend::cuda
