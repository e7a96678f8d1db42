#include "backend/backend.h"

#include "base/error.h"

namespace tensorfold::backend {
namespace {

[[noreturn]] void refuse(const Backend& backend, const char* operation) {
  fail(ErrorKind::unsupported, "the {} backend has no {} yet", backend.info().name, operation);
}

}  // namespace

void Backend::norm_add(const Plan&, const NormAdd&) { refuse(*this, "normed addition"); }
void Backend::soft_cap(const Plan&, const SoftCap&) { refuse(*this, "soft cap"); }
void Backend::experts(const Plan&, const Experts&) { refuse(*this, "mixture of experts"); }
void Backend::mamba2(const Plan&, const Mamba2&) { refuse(*this, "Mamba-2 step"); }
void Backend::mean_streams(const Plan&, const MeanStreams&) { refuse(*this, "mean of streams"); }
void Backend::hyper_connection_read(const Plan&, const HyperConnectionRead&) { refuse(*this, "hyper-connection"); }
void Backend::hyper_connection_write(const Plan&, const HyperConnectionWrite&) { refuse(*this, "hyper-connection"); }
std::unique_ptr<NgramTable> Backend::load_ngram_table(const NgramHashing&, std::span<const format::Linear>) {
  refuse(*this, "n-gram embedding");
}
void Backend::ngram_embed(const Plan&, const NgramTable&, Tensor) { refuse(*this, "n-gram embedding"); }
void Backend::ngram_branch(const Plan&, const NgramBranch&) { refuse(*this, "n-gram embedding"); }
void Backend::layer_norm(const Plan&, const LayerNorm&) { refuse(*this, "layer norm"); }
std::unique_ptr<Selection> Backend::make_selection(int64_t, int32_t, int32_t) { refuse(*this, "sparse attention"); }
void Backend::block_index(const Plan&, const BlockIndex&) { refuse(*this, "sparse attention"); }
void Backend::latent_attention(const Plan&, const LatentAttention&) { refuse(*this, "latent attention"); }
void Backend::kimi_delta(const Plan&, const KimiDelta&) { refuse(*this, "Kimi delta step"); }
void Backend::stream_weights(const Plan&, const StreamWeights&) { refuse(*this, "mixing of residual streams"); }
void Backend::stream_read(const Plan&, const StreamRead&) { refuse(*this, "mixing of residual streams"); }
void Backend::stream_write(const Plan&, const StreamWrite&) { refuse(*this, "mixing of residual streams"); }
void Backend::clear_position(const Plan&, int32_t, Tensor) { refuse(*this, "clearing of rows"); }

}  // namespace tensorfold::backend
