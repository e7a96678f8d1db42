#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>

#include "backend/keyed_sampling.h"
#include "base/error.h"
#include "base/physical_memory.h"

namespace tensorfold::backend::cpu {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "processor";
}

CpuCache& cpu_cache(Cache& cache) { return static_cast<CpuCache&>(cache); }
const CpuCache& cpu_cache(const Cache& cache) { return static_cast<const CpuCache&>(cache); }

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

const float* CpuVector::transposed(int64_t columns) const {
  if (turned_.empty()) {
    const auto width = static_cast<size_t>(columns);
    check(columns > 0 && values.size() % width == 0, "a vector that is no matrix of this width");
    const size_t rows = values.size() / width;
    turned_.resize(values.size());
    for (size_t row = 0; row < rows; ++row) {
      for (size_t column = 0; column < width; ++column) turned_[column * rows + row] = values[row * width + column];
    }
  }
  return turned_.data();
}

uint64_t CpuProjection::bytes() const {
  uint64_t total = 0;
  for (const PackedMatrix& part : parts) total += static_cast<uint64_t>(part.tiles * part.tile_bytes);
  return total;
}

float* Workspace::floats(int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  if (memory_.size() < bytes) {
    memory_ = AlignedBytes();
    memory_ = AlignedBytes(bytes + bytes / 4, "a workspace");
  }
  return memory_.floats();
}

CpuBackend::CpuBackend(int threads, const std::string& level, bool break_order)
    : kernels_(select_kernels(level)),
      break_order_(break_order),
      threads_(threads),
      workers_(static_cast<size_t>(threads_.size())) {}

BackendInfo CpuBackend::info() const {
  BackendInfo info;
  info.name = "cpu";
  info.device = fmt::format("{}, {} threads, {}", processor_name(), threads_.size(), kernels_.level);
  info.arithmetic = "cpu-fp32-1";
  info.slice_inputs = kSliceInputs;
  info.memory_bytes = physical_memory();
  return info;
}

std::unique_ptr<Projection> CpuBackend::load_projection(std::span<const format::Linear> stacked) {
  check(!stacked.empty(), "a projection of nothing");
  auto projection = std::make_unique<CpuProjection>();
  for (const format::Linear& linear : stacked) {
    check(linear.inputs == stacked.front().inputs, "stacked matrices of different inputs");
    for (int64_t member = 0; member < linear.stack; ++member) {
      projection->first_output.push_back(projection->output_count);
      projection->parts.push_back(pack_matrix(linear, member, threads_, weight_memory_));
      projection->output_count += linear.outputs;
      projection->tiles += projection->parts.back().tiles;
    }
    linear.store->release(*linear.weight);
  }
  return projection;
}

std::unique_ptr<Vector> CpuBackend::load_vector(std::span<const float> values) {
  auto vector = std::make_unique<CpuVector>();
  vector->values.assign(values.begin(), values.end());
  return vector;
}

OwnedTensor CpuBackend::allocate(int64_t rows, int64_t width, Precision) {
  const int64_t stride = (width + 15) / 16 * 16;
  OwnedTensor tensor;
  tensor.memory = std::make_unique<CpuBuffer>(static_cast<size_t>(rows * stride) * sizeof(float));
  tensor.view = {tensor.memory.get(), width, stride, 0};
  return tensor;
}

std::unique_ptr<Cache> CpuBackend::make_cache(const CacheLayout& layout, const CacheSize& size) {
  return std::make_unique<CpuCache>(layout, size);
}

CpuBackend::PlanView CpuBackend::view_of(const Plan& plan, uint64_t forward) {
  PlanView view;
  view.plan = &plan;
  view.forward = forward;
  for (int32_t row = 0; row < plan.rows(); ++row) {
    const auto r = static_cast<size_t>(row);
    const bool committed = plan.sequences[static_cast<size_t>(plan.owner[r])].keep_all;
    view.window_index.push_back(committed ? -1 : view.window_rows++);
    const int32_t parent = plan.parents[r];
    check(parent < row, "a plan row before its parent");
    view.depth.push_back(parent < 0 ? 0 : view.depth[static_cast<size_t>(parent)] + 1);
  }
  return view;
}

void CpuBackend::run(const Plan& plan, uint64_t, const std::function<void()>& forward) {
  view_ = view_of(plan, ++forwards_);
  running_ = true;
  struct Ended {
    bool& running;
    ~Ended() { running = false; }
  } ended{running_};
  forward();
}

void CpuBackend::check_running(const Plan& plan) const {
  check(running_ && view_.plan == &plan, "an operation outside the run of its plan");
}

void CpuBackend::rms_norm(const Plan& plan, const RmsNorm& a) {
  const float* weight = a.weight != nullptr ? static_cast<const CpuVector*>(a.weight)->values.data() : nullptr;
  check(a.weight == nullptr || a.weight->size() == a.input.width, "a norm weight of another width");
  threads_.run(row_count(plan, a.rows), [&](int64_t begin, int64_t end, int) {
    for (int64_t j = begin; j < end; ++j)
      kernels_.rms_norm(row_of(a.input, plan_row(plan, a.rows, j)), weight, a.input.width, a.epsilon,
                        row_of(a.output, j));
  });
}

void CpuBackend::layer_norm(const Plan& plan, const LayerNorm& a) {
  check(a.weight->size() == a.input.width && a.bias->size() == a.input.width, "a norm weight of another width");
  const float* weight = static_cast<const CpuVector*>(a.weight)->values.data();
  const float* bias = static_cast<const CpuVector*>(a.bias)->values.data();
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      kernels_.layer_norm(row_of(a.input, row), weight, bias, a.input.width, a.epsilon, row_of(a.output, row));
  });
}

void CpuBackend::clear_position(const Plan& plan, int32_t position, Tensor rows) {
  for (int32_t row = 0; row < plan.rows(); ++row) {
    if (plan.positions[static_cast<size_t>(row)] == position) std::fill_n(row_of(rows, row), rows.width, 0.0F);
  }
}

void CpuBackend::norm_add(const Plan& plan, const NormAdd& a) {
  check(a.weight != nullptr && a.weight->size() == a.input.width, "a norm weight of another width");
  check(a.residual.width == a.input.width && a.output.width == a.input.width, "added rows of different widths");
  const float* weight = static_cast<const CpuVector*>(a.weight)->values.data();
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int worker) {
    float* normed = worker_floats(worker, a.input.width);
    for (int64_t row = begin; row < end; ++row) {
      kernels_.rms_norm(row_of(a.input, row), weight, a.input.width, a.epsilon, normed);
      kernels_.add(row_of(a.residual, row), a.input.width, normed);
      if (a.factor != 1.0F) kernels_.scale(a.factor, a.input.width, normed);
      copy_bytes(row_of(a.output, row), normed, a.input.width * 4);
    }
  });
}

void CpuBackend::soft_cap(const Plan& plan, const SoftCap& a) {
  check(a.cap > 0.0F, "a soft cap above zero");
  threads_.run(row_count(plan, a.rows), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) kernels_.soft_cap(a.cap, a.values.width, row_of(a.values, row));
  });
}

void CpuBackend::block_convolution(const Plan& plan, const BlockConvolution& a) {
  const int64_t channels = a.input.width;
  const int64_t groups = channels / a.group;
  const float* base = static_cast<const CpuVector*>(a.base)->values.data() + 2LL * a.side * channels;
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t parent = plan.parents[static_cast<size_t>(row)];
      const float* own = row_of(a.input, row);
      const float* before = parent >= 0 ? row_of(a.input, parent) : nullptr;
      const float* dynamic = row_of(a.dynamic, row) + 2LL * a.side * groups;
      float* to = row_of(a.output, row);
      for (int64_t c = 0; c < channels; ++c) {
        float y = (base[c] + dynamic[c / a.group]) * own[c];
        if (before != nullptr) y += (base[channels + c] + dynamic[groups + c / a.group]) * before[c];
        to[c] = a.add ? to[c] + y : y;
      }
    }
  });
}

void CpuBackend::gather_rows(std::span<const int32_t> rows, Tensor input, Tensor output, int32_t first) {
  check(input.width == output.width, "gathered rows of different widths");
  for (size_t j = 0; j < rows.size(); ++j) {
    copy_bytes(row_of(output, first + static_cast<int64_t>(j)), row_of(input, rows[j]), input.width * 4);
  }
}

void CpuBackend::copy(const Plan& plan, Tensor input, Tensor output) {
  check(input.width == output.width, "copied rows of different widths");
  for (int64_t row = 0; row < plan.rows(); ++row) copy_bytes(row_of(output, row), row_of(input, row), input.width * 4);
}

void CpuBackend::draw(const Plan&, Tensor logits, std::span<const DrawRow> rows) {
  drawn_.assign(rows.size(), {});
  threads_.run(static_cast<int64_t>(rows.size()), [&](int64_t begin, int64_t end, int) {
    for (auto j = static_cast<size_t>(begin); j < static_cast<size_t>(end); ++j)
      draw_token({row_of(logits, rows[j].logit_row), static_cast<size_t>(logits.width)}, rows[j], drawn_[j]);
  });
}

void CpuBackend::read_draws(std::span<Drawn> out) {
  check(out.size() == drawn_.size(), "more or fewer draws read than drawn");
  std::copy(drawn_.begin(), drawn_.end(), out.begin());
}

void CpuBackend::top_candidates(const Plan& plan, Tensor logits, int32_t count) {
  const auto rows = static_cast<int64_t>(plan.logit_rows.size());
  const auto wanted = static_cast<size_t>(count);
  check(count >= 0 && count <= logits.width, "more candidates than the vocabulary has");
  candidate_values_.assign(static_cast<size_t>(rows) * wanted, 0.0F);
  candidate_ids_.assign(static_cast<size_t>(rows) * wanted, 0);
  threads_.run(rows, [&](int64_t begin, int64_t end, int) {
    using Candidate = std::pair<float, int32_t>;
    const auto before = [](const Candidate& a, const Candidate& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    };
    std::vector<Candidate> heap;  // the last of the chosen on top
    for (int64_t row = begin; row < end; ++row) {
      heap.clear();
      const float* values = row_of(logits, row);
      for (int32_t id = 0; id < static_cast<int32_t>(logits.width); ++id) {
        const Candidate candidate{values[id] == values[id] ? values[id] : -HUGE_VALF, id};
        if (heap.size() == wanted) {
          if (wanted == 0 || !before(candidate, heap.front())) continue;
          std::pop_heap(heap.begin(), heap.end(), before);
          heap.back() = candidate;
        } else {
          heap.push_back(candidate);
        }
        std::push_heap(heap.begin(), heap.end(), before);
      }
      std::sort(heap.begin(), heap.end(), before);
      for (size_t i = 0; i < wanted; ++i) {
        candidate_values_[static_cast<size_t>(row) * wanted + i] = heap[i].first;
        candidate_ids_[static_cast<size_t>(row) * wanted + i] = heap[i].second;
      }
    }
  });
}

void CpuBackend::read_candidates(std::span<float> values, std::span<int32_t> ids) {
  check(values.size() == candidate_values_.size() && ids.size() == candidate_ids_.size(),
        "more or fewer candidates read than found");
  std::copy(candidate_values_.begin(), candidate_values_.end(), values.begin());
  std::copy(candidate_ids_.begin(), candidate_ids_.end(), ids.begin());
}

void CpuBackend::clear_state(Cache& cache, int32_t slot) {
  float* state = cpu_cache(cache).slot(slot);
  std::fill(state, state + cache.state_bytes() / 4, 0.0F);
}

void CpuBackend::copy_state(Cache& cache, int32_t from, int32_t to) {
  if (from != to) copy_bytes(cpu_cache(cache).slot(to), cpu_cache(cache).slot(from), cache.state_bytes());
}

void CpuBackend::copy_page(Cache& cache, int32_t from, int32_t to) {
  if (from != to) copy_bytes(cpu_cache(cache).page(to), cpu_cache(cache).page(from), cache.page_bytes());
}

void CpuBackend::read_state(const Cache& cache, int32_t slot, std::span<std::byte> out) {
  check(static_cast<int64_t>(out.size()) == cache.state_bytes(), "a state of another size");
  copy_bytes(out.data(), cpu_cache(cache).slot(slot), cache.state_bytes());
}

void CpuBackend::write_state(Cache& cache, int32_t slot, std::span<const std::byte> in) {
  check(static_cast<int64_t>(in.size()) == cache.state_bytes(), "a state of another size");
  copy_bytes(cpu_cache(cache).slot(slot), in.data(), cache.state_bytes());
}

void CpuBackend::read_page(const Cache& cache, int32_t page, std::span<std::byte> out) {
  check(static_cast<int64_t>(out.size()) == cache.page_bytes(), "a page of another size");
  copy_bytes(out.data(), cpu_cache(cache).page(page), cache.page_bytes());
}

void CpuBackend::write_page(Cache& cache, int32_t page, std::span<const std::byte> in) {
  check(static_cast<int64_t>(in.size()) == cache.page_bytes(), "a page of another size");
  copy_bytes(cpu_cache(cache).page(page), in.data(), cache.page_bytes());
}

void CpuBackend::read_rows(Tensor tensor, int64_t first, int64_t count, std::span<float> out) {
  check(static_cast<int64_t>(out.size()) == count * tensor.width, "rows of another size");
  for (int64_t row = 0; row < count; ++row)
    copy_bytes(out.data() + row * tensor.width, row_of(tensor, first + row), tensor.width * 4);
}

void CpuBackend::write_rows(Tensor tensor, int64_t first, int64_t count, std::span<const float> in) {
  check(static_cast<int64_t>(in.size()) == count * tensor.width, "rows of another size");
  for (int64_t row = 0; row < count; ++row)
    copy_bytes(row_of(tensor, first + row), in.data() + row * tensor.width, tensor.width * 4);
}

}  // namespace tensorfold::backend::cpu

namespace tensorfold::backend {

std::unique_ptr<Backend> make_cpu_backend(int threads, const std::string& simd, bool break_order) {
  return std::make_unique<cpu::CpuBackend>(threads, simd, break_order);
}

}  // namespace tensorfold::backend
