// Draws and candidates. The logits of the rows go to the host, where the keyed sampler is the one that every backend
// shares.
#include <algorithm>
#include <numeric>

#include "backend/cuda/cuda_backend.h"
#include "backend/keyed_sampling.h"
#include "base/error.h"

namespace tensorfold::backend::cuda {

void CudaBackend::draw(const Plan&, Tensor logits, std::span<const DrawRow> rows) {
  const Activation from = activation(logits);
  check(from.bf16 == 0, "logits are fp32");
  draws_ = {};
  draws_.vocabulary = logits.width;
  const size_t wanted = rows.size() * static_cast<size_t>(logits.width);
  if (drawn_logits_.size() < wanted) drawn_logits_ = PinnedArray<float>(wanted);
  for (size_t i = 0; i < rows.size(); ++i) {
    const DrawRow& row = rows[i];
    draws_.rows.push_back(row);
    draws_.counts.emplace_back(row.penalties.counts.begin(), row.penalties.counts.end());
    draws_.biases.emplace_back(row.penalties.biases.begin(), row.penalties.biases.end());
    draws_.masks.emplace_back(row.mask.begin(), row.mask.end());
    cuda_check(cudaMemcpyAsync(drawn_logits_.data() + i * static_cast<size_t>(logits.width),
                               static_cast<const float*>(from.data) + row.logit_row * from.stride + from.offset,
                               static_cast<size_t>(logits.width) * sizeof(float), cudaMemcpyDeviceToHost, stream_),
               "copy logits");
  }
}

void CudaBackend::read_draws(std::span<Drawn> out) {
  check(out.size() == draws_.rows.size(), "as many results as draws");
  cuda_check(cudaStreamSynchronize(stream_), "finish a round");
  const auto width = static_cast<size_t>(draws_.vocabulary);
  for (size_t i = 0; i < out.size(); ++i) {
    DrawRow row = draws_.rows[i];
    row.penalties.counts = draws_.counts[i];
    row.penalties.biases = draws_.biases[i];
    row.mask = draws_.masks[i];
    draw_token({drawn_logits_.data() + i * width, width}, row, out[i]);
  }
}

void CudaBackend::top_candidates(const Plan& plan, Tensor logits, int32_t) {
  const Activation from = activation(logits);
  check(from.bf16 == 0, "logits are fp32");
  candidate_rows_ = static_cast<int32_t>(plan.logit_rows.size());
  candidate_width_ = logits.width;
  const auto width = static_cast<size_t>(logits.width);
  const size_t wanted = static_cast<size_t>(candidate_rows_) * width;
  if (candidate_logits_.size() < wanted) candidate_logits_ = PinnedArray<float>(wanted);
  cuda_check(cudaMemcpy2DAsync(candidate_logits_.data(), width * sizeof(float),
                               static_cast<const float*>(from.data) + from.offset,
                               static_cast<size_t>(from.stride) * sizeof(float), width * sizeof(float),
                               static_cast<size_t>(candidate_rows_), cudaMemcpyDeviceToHost, stream_),
             "copy logits");
}

void CudaBackend::read_candidates(std::span<float> values, std::span<int32_t> ids) {
  check(candidate_rows_ > 0 && values.size() == ids.size() && values.size() % static_cast<size_t>(candidate_rows_) == 0,
        "as many candidates a row as asked");
  cuda_check(cudaStreamSynchronize(stream_), "finish a round");
  const auto width = static_cast<size_t>(candidate_width_);
  const size_t count = values.size() / static_cast<size_t>(candidate_rows_);
  check(count <= width, "no more candidates than tokens");
  std::vector<int32_t> order(width);
  for (size_t row = 0; row < static_cast<size_t>(candidate_rows_); ++row) {
    const float* logits = candidate_logits_.data() + row * width;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                      [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
    for (size_t i = 0; i < count; ++i) {
      ids[row * count + i] = order[i];
      values[row * count + i] = logits[order[i]];
    }
  }
}

}  // namespace tensorfold::backend::cuda
