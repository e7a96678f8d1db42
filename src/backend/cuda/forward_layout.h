// Shared memory and threads of the forward kernel.
#pragma once

#include <cstdint>

#include "backend/cuda/forward_program.h"

namespace tensorfold::backend::cuda {

constexpr int kConsumerWarps = 18;  // all but the last own one tile of a block of weights
constexpr int kConsumers = kConsumerWarps * 32;
constexpr int kForwardThreads = kConsumers + 64;  // and the two streaming warps

/// The ring of weights: a stage holds 4 groups of 17 tiles, 8 of 10, 10 of 8.
constexpr uint32_t kStages = 3;
constexpr uint32_t kStageBytes = 46080;
/// The ring of rows: a piece is large, because all thread blocks read the same bytes at the same time, and the few
/// lines of a small piece would come from few slices of the L2 cache.
constexpr uint32_t kPieces = 5;
constexpr uint32_t kPieceBytes = 16384;
template <int RowTiles>
constexpr int kPieceGroups = static_cast<int>(kPieceBytes) / 1024 / RowTiles;
/// What operations other than products work in; during a product it is the ring of rows.
constexpr uint32_t kScratchBytes = 88064;
static_assert(kPieces * kPieceBytes <= kScratchBytes);
constexpr uint32_t kRingAt = kScratchBytes;
constexpr uint32_t kOperationsAt = kRingAt + kStages * kStageBytes;
constexpr uint32_t kBarriersAt = kOperationsAt + 2 * sizeof(Operation);
constexpr uint32_t kArgumentsAt = kBarriersAt + (kStages + kPieces + 1) * 16;  // the last for the rows' scales
constexpr uint32_t kRowScalesAt = kArgumentsAt + (sizeof(ForwardArguments) + 15) / 16 * 16;
constexpr uint32_t kRowCountsAt = kRowScalesAt + kMostProgramRows * sizeof(float);  // the plan's first two words
constexpr uint32_t kForwardShared = kRowCountsAt + 16;
static_assert(kForwardShared <= 227 * 1024);

constexpr int kMostDeltaValues = 128;
constexpr int kMostNormWidth = 6144;

}  // namespace tensorfold::backend::cuda
