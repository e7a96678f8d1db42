// Products inside the forward kernel: the two streaming warps and what a computing warp does.
#pragma once

#include "backend/cuda/forward_layout.h"
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
  /// The last product's phase that has begun, plus one.
  __device__ uint32_t begun() const { return memory + kBegunAt; }
};

/// Waits until `arrivals` has reached `target`; what its thread blocks wrote before is visible then. (An acquiring load
/// would empty the L1 cache at every turn.)
__device__ inline void wait_arrivals(const uint32_t* arrivals, uint32_t target) {
  uint32_t now = 0;
  do {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrivals) : "memory");
  } while (static_cast<int32_t>(now - target) < 0);
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
/// Orders ordinary accesses and those of the copy engine.
__device__ inline void proxy_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// One thread: this product's rows may be read, and the scratch memory is free for them.
__device__ inline void announce_rows(const Ring& ring, int phase) {
  proxy_fence();
  asm volatile("st.release.cta.shared.s32 [%0], %1;" ::"r"(ring.begun()), "r"(phase + 1) : "memory");
}
__device__ inline void wait_for_rows(const Ring& ring, int phase) {
  int begun = 0;
  do {
    asm volatile("ld.acquire.cta.shared.s32 %0, [%1];" : "=r"(begun) : "r"(ring.begun()) : "memory");
  } while (begun <= phase);
  proxy_fence();
}

/// Calls use(stream, block, group, end) for each pass of this thread block, product by product.
template <typename Use>
__device__ inline void for_each_pass(const ForwardArguments& a, Use&& use) {
  if (a.product_count == 0) return;
  ProductStream next = a.products[0];
  for (int i = 0; i < a.product_count; ++i) {
    const ProductStream s = next;
    if (i + 1 < a.product_count) next = a.products[i + 1];
    const int passes = s.blocks * s.slices;
    const int end = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x) + 1);
    for (int pass = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x)); pass < end; ++pass)
      use(s, pass % s.blocks, slice_begin(s.groups, s.slices, pass / s.blocks),
          slice_begin(s.groups, s.slices, pass / s.blocks + 1));
  }
}

/// One thread: the weights of all products.
__device__ inline void stream_weights(const ForwardArguments& a, const Ring& ring) {
  const uint64_t policy = stream_policy();
  RingPlace<kStages> place;
  for_each_pass(a, [&](const ProductStream& s, int block, int group, int end) {
    const uint8_t* from = s.weights + (static_cast<int64_t>(block) * s.groups + group) * s.group_stride;
    for (; group < end; group += s.ring_groups) {
      const auto bytes = static_cast<uint32_t>(min(s.ring_groups, end - group) * s.group_stride);
      barrier_wait(ring.stage_empty(place.at), place.parity ^ 1U);
      barrier_expect(ring.stage_full(place.at), bytes);
      bulk_copy_once(ring.stage(place.at), from, bytes, ring.stage_full(place.at), policy);
      from += bytes;
      place.advance();
    }
  });
}

/// One thread: the rows of all products, each when its phase has begun.
template <int RowTiles>
__device__ inline void stream_rows(const ForwardArguments& a, const Ring& ring) {
  constexpr int piece_groups = kPieceGroups<RowTiles>;
  RingPlace<kPieces> place;
  for_each_pass(a, [&](const ProductStream& s, int, int group, int end) {
    wait_for_rows(ring, s.phase);
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
  });
}

/// One group of one tile as a lane holds it: weights, and the fragments of all row tiles.
template <int RowTiles>
struct LoadedGroup {
  AffineGroup weights;
  uint32_t rows[2][RowTiles][4];
};

template <int RowTiles>
__device__ inline void load_group(LoadedGroup<RowTiles>& to, const uint8_t* weights, uint32_t rows,
                                  uint32_t row_stride, int lane) {
  to.weights = load_affine(weights, lane);
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int n = 0; n < RowTiles; ++n)
      load_matrices(to.rows[half][n], rows + n * row_stride + static_cast<uint32_t>(half * 512 + lane * 16));
}

template <int RowTiles>
__device__ inline void multiply_group(float (&sum)[RowTiles][4], const LoadedGroup<RowTiles>& group) {
  const uint32_t low = both_low(group.weights.pairs.x);
  const uint32_t low_bias = both_high(group.weights.pairs.x);
  const uint32_t high = both_low(group.weights.pairs.y);
  const uint32_t high_bias = both_high(group.weights.pairs.y);
  uint32_t a[4][4];
  affine_fragment(a[0], group.weights.words.x, low, low_bias, high, high_bias);
  affine_fragment(a[1], group.weights.words.y, low, low_bias, high, high_bias);
  affine_fragment(a[2], group.weights.words.z, low, low_bias, high, high_bias);
  affine_fragment(a[3], group.weights.words.w, low, low_bias, high, high_bias);
#pragma unroll
  for (int step = 0; step < 4; ++step)
#pragma unroll
    for (int n = 0; n < RowTiles; ++n)
      mma_step(sum[n], a[step], group.rows[step / 2][n][(step % 2) * 2], group.rows[step / 2][n][(step % 2) * 2 + 1]);
}

/// What one warp reads of the two rings during a pass: where the current group lies.
template <int RowTiles>
struct PassReader {
  const Ring& ring;
  RingPlaces& places;
  const uint8_t* memory;
  int lane;
  int ring_groups;
  int group_stride;
  int own;  ///< offset of the warp's tile in a group
  int left = 0;
  int in_stage = 0;
  int in_piece = 0;
  const uint8_t* weights = nullptr;
  uint32_t rows = 0;

  __device__ void open_stage() {
    barrier_wait(ring.stage_full(places.stage.at), places.stage.parity);
    weights = memory + kRingAt + places.stage.at * kStageBytes + own;
    in_stage = min(ring_groups, left);
  }
  __device__ void open_piece() {
    barrier_wait(ring.piece_full(places.piece.at), places.piece.parity);
    rows = ring.piece(places.piece.at);
    in_piece = min(kPieceGroups<RowTiles>, left);
  }
  __device__ void begin(int groups) {
    left = groups;
    open_piece();
    open_stage();
  }
  /// `count` groups further, at most to the end of the stage and the piece. What the warp has read is in registers.
  __device__ void advance(int count = 1) {
    left -= count;
    in_stage -= count;
    in_piece -= count;
    weights += count * group_stride;
    rows += static_cast<uint32_t>(count) * 1024U;
    if (in_stage == 0) {
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.stage_empty(places.stage.at));
      places.stage.advance();
      if (left > 0) open_stage();
    }
    if (in_piece == 0) {
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.piece_empty(places.piece.at));
      places.piece.advance();
      if (left > 0) open_piece();
    }
  }
};

/// A warp without a tile in this pass keeps the rings' counts.
template <int RowTiles>
__device__ inline void skip_pass(PassReader<RowTiles>& reader, int groups) {
  reader.begin(groups);
  while (reader.left > 0) reader.advance(min(reader.in_stage, reader.in_piece));
}

/// The chain of one pass, weights and rows of the next group loaded while one is multiplied.
template <int RowTiles>
__device__ inline void pass_chain(float (&sum)[RowTiles][4], PassReader<RowTiles>& reader, int groups) {
  constexpr uint32_t row_stride = kPieceGroups<RowTiles> * 1024U;
  LoadedGroup<RowTiles> now;
  reader.begin(groups);
  load_group(now, reader.weights, reader.rows, row_stride, reader.lane);
#pragma unroll 2
  for (int group = 1; group < groups; ++group) {
    reader.advance();
    LoadedGroup<RowTiles> next;
    load_group(next, reader.weights, reader.rows, row_stride, reader.lane);
    multiply_group(sum, now);
    now = next;
  }
  reader.advance();
  multiply_group(sum, now);
}

/// The same without that, where registers do not hold a group's rows twice.
template <WeightFormat Format, int RowTiles>
__device__ inline void pass_chain_by_runs(float (&sum)[RowTiles][4], PassReader<RowTiles>& reader, int groups) {
  constexpr uint32_t row_stride = kPieceGroups<RowTiles> * 1024U;
  float sums[kTilesAWarp][RowTiles][4] = {};
  reader.begin(groups);
  while (reader.left > 0) {
    const int run = min(reader.in_stage, reader.in_piece);
    stage_chain<Format, RowTiles, 1>(sums, reader.weights, reader.group_stride, reader.rows, row_stride, run,
                                     reader.lane);
    reader.advance(run);
  }
#pragma unroll
  for (int n = 0; n < RowTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[n][i] = sums[0][n][i];
}

/// This warp's share of a product.
template <WeightFormat Format, int RowTiles>
__device__ inline void multiply_passes(const ProductWork& work, const Ring& ring, RingPlaces& places,
                                       const uint8_t* memory, int warp, int lane) {
  const RowProduct& p = work.product;
  const PackedWeights w = p.weights;
  const int exist = *p.row_count - p.first_row;
  const int passes = w.blocks * w.slices;
  const int end = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x) + 1);
  PassReader<RowTiles> reader{ring, places, memory, lane, work.ring_groups, w.block_tiles * group_bytes(Format),
                              warp * group_bytes(Format)};
  for (int index = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x)); index < end;
       ++index) {
    const Pass pass = find_pass(w, index);
    const int tile = pass.block * w.block_tiles + warp;
    if (warp >= w.block_tiles || tile >= w.tiles) {
      skip_pass(reader, pass.end - pass.group);
      continue;
    }
    float sum[RowTiles][4] = {};
    if constexpr (Format == WeightFormat::affine4 && RowTiles <= 2)
      pass_chain<RowTiles>(sum, reader, pass.end - pass.group);
    else
      pass_chain_by_runs<Format, RowTiles>(sum, reader, pass.end - pass.group);
    if (w.slices > 1 && !add_slices<RowTiles>(p, sum, pass.slice, tile, lane)) continue;
    write_outputs<RowTiles>(p, sum, tile, p.first_row, exist, lane);
  }
}

}  // namespace tensorfold::backend::cuda
