// The table of one level from the templates.
#pragma once

#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/index_kernels.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/product_kernels.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/stream_kernels.h"

namespace tensorfold::backend::cpu {

template <typename L>
KernelTable make_kernel_table(const char* level) {
  using Product = ProductKernels<L>;
  using Row = RowKernels<L>;
  using Attention = AttentionKernels<L>;
  using Index = IndexKernels<L>;
  using Streams = StreamKernels<L>;
  KernelTable table;
  table.level = level;
  table.total = Row::total;
  table.unpack_slice = Product::unpack_slice;
  table.dot_tile = Product::dot_tile;
  table.dot_slice = Product::dot_slice;
  table.dot = LaneMath<L>::dot;
  table.add_transposed = Product::add_transposed;
  table.rms_norm = Row::rms_norm;
  table.layer_norm = Row::layer_norm;
  table.add = Row::add;
  table.swiglu = Row::swiglu;
  table.limited_swiglu = Row::limited_swiglu;
  table.geglu = Row::geglu;
  table.relu_squared = Row::relu_squared;
  table.add_scaled = Row::add_scaled;
  table.soft_cap = Row::soft_cap;
  table.multiply_sigmoid = Row::multiply_sigmoid;
  table.multiply_silu = Row::multiply_silu;
  table.scale = Row::scale;
  table.attend = Attention::attend;
  table.merge = Attention::merge;
  table.convolve = Row::convolve;
  table.channel_decay = Row::channel_decay;
  table.delta_step = Row::delta_step;
  table.mamba_step = Row::mamba_step;
  table.pool_mean = Index::pool_mean;
  table.pool_gated = Index::pool_gated;
  table.score_blocks = Index::score_blocks;
  table.read_streams = Streams::read_streams;
  table.write_streams = Streams::write_streams;
  return table;
}

}  // namespace tensorfold::backend::cpu
