// What a model family offers to the engine: a description from its config, the tensors it expects, the caches it keeps
// and the forward, written once against the backend's operations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "backend/backend.h"
#include "format/tensor_store.h"

namespace tensorfold::families {

/// Sizes that the engine, the drafters and `info` ask for.
struct ModelInfo {
  std::string model_type;  ///< the registry's name, e.g. "qwen3_5"
  std::string title;       ///< for people
  int64_t vocabulary_size = 0;
  int64_t hidden_size = 0;
  int32_t hidden_streams = 1;  ///< hidden_size wide streams of a ForwardOutputs::hidden row
  int32_t layers = 0;
  int32_t native_context = 0;       ///< max_position_embeddings
  int32_t default_context = 0;      ///< of a server that is not told one; 0: what memory holds
  std::vector<int32_t> end_tokens;  ///< of config.json, into which load_config merges generation_config.json
  int64_t decode_bytes = 0;         ///< weight bytes one row reads
  bool draft_head = false;          ///< described: the config declares one; loaded: the checkpoint holds it
  std::vector<std::string> notes;   ///< e.g. "vision tower skipped"

  /// Values of a ForwardOutputs::hidden row, which the draft head reads.
  [[nodiscard]] int64_t hidden_width() const { return hidden_size * hidden_streams; }
};

/// Where a forward leaves what later steps read; a tensor without a buffer is not wanted.
struct ForwardOutputs {
  backend::Tensor logits;  ///< [logit_rows][vocabulary]
  backend::Tensor hidden;  ///< [rows][ModelInfo::hidden_width]: what the draft head reads, mostly final-normed rows
  backend::Tensor taps;    ///< [rows][taps * hidden]: the residual stream after each of tap_layers, for block drafters
  std::span<const int32_t> tap_layers;
};

/// The checkpoint's own next-token head (multi-token prediction). Entry i takes the target's hidden row i and the token
/// that follows it, and its logits are for the position after that token. It keeps its own cache.
class DraftHead {
 public:
  virtual ~DraftHead() = default;
  [[nodiscard]] virtual backend::CacheLayout cache_layout() const = 0;
  /// plan.tokens[r]: the token after row r; plan.positions[r]: entry index. `hidden`: [rows][hidden_width] inputs.
  /// Writes the head's own output rows (as `hidden`, for chaining) and the logits of plan.logit_rows.
  virtual void forward(const backend::Plan& plan, backend::Cache& cache, backend::Tensor hidden,
                       backend::Tensor hidden_output, backend::Tensor logits) = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  [[nodiscard]] virtual const ModelInfo& info() const = 0;
  [[nodiscard]] virtual backend::CacheLayout cache_layout() const = 0;
  /// Most rows a plan may have; set when the model was loaded.
  [[nodiscard]] virtual int32_t max_rows() const = 0;
  /// Enqueues the operations of one forward; call it inside Backend::run with the same plan. So for embed, head and
  /// DraftHead::forward.
  virtual void forward(const backend::Plan& plan, backend::Cache& cache, const ForwardOutputs& outputs) = 0;
  /// The checkpoint's own draft head, or null.
  virtual DraftHead* draft_head() { return nullptr; }
  // For block drafters that borrow the target's embedding and head.
  virtual void embed(const backend::Plan& plan, backend::Tensor output) = 0;
  /// Logits of already normed rows (RowSet::logits of `plan` selects them), not capped: a drafter's config names its
  /// own cap.
  virtual void head(const backend::Plan& plan, backend::Tensor normed, backend::Tensor logits) = 0;
};

/// How a tensor is used, which decides the checks at load.
enum class TensorRole {
  linear,
  embedding,
  tied_embedding,  ///< also the output matrix
  vector,
  integers,  ///< 64-bit constants; nothing stands for them in synthetic checkpoints
};

/// One tensor that a checkpoint of this config must (or may) hold.
struct TensorSpec {
  std::string module;  ///< full path without ".weight" for linear and embedding, else the full tensor name
  TensorRole role = TensorRole::vector;
  /// Unquantised shape; linear: [outputs, inputs] or [stack, outputs, inputs]. Of vectors, dimensions of 1 do not
  /// count.
  std::vector<int64_t> shape;
  bool optional = false;
  // For synthetic weights: a vector's values lie in [center - spread, center + spread].
  float center = 1.0F;
  float spread = 0.1F;
  double read_share = 1.0;     ///< of its bytes that one row reads: chosen experts of all
  bool never_packed = false;   ///< converters leave it alone unless config.json names it (routers)
  bool draft_head = false;     ///< belongs to the checkpoint's own draft head
  bool stays_on_disk = false;  ///< never loaded: rows are read from the files when they are looked up
};

/// Tensors that a family knows and does not read.
struct SkippedTensors {
  std::string prefix;
  std::string note;  ///< for people, e.g. "vision tower skipped"; empty: not worth a word
};

/// One entry of the registry.
struct Family {
  std::string model_type;
  std::string title;
  std::vector<std::string> aliases;  ///< further values of `model_type` in config.json
  /// Sizes from the config alone. Throws Error(unsupported or invalid_request) naming every field it cannot serve.
  ModelInfo (*describe)(const nlohmann::json& config);
  /// What a model of this config keeps for a sequence: Model::cache_layout without a model.
  backend::CacheLayout (*cache_layout)(const nlohmann::json& config);
  /// The tensors of a checkpoint of this config. `names`: the names present, to tell layouts apart (empty: MLX layout).
  std::vector<TensorSpec> (*inventory)(const nlohmann::json& config, std::span<const std::string> names);
  /// What else may stand in such a checkpoint. Looked at only for names outside the inventory.
  std::vector<SkippedTensors> skipped;
  /// Loads a checkpoint that check_inventory (families/inventory.h) has passed. `max_rows`: see Model.
  std::unique_ptr<Model> (*load)(const nlohmann::json& config, const format::TensorStore& store,
                                 backend::Backend& backend, int32_t max_rows);
  /// What a conversion to MLX's format adds to the vector `name` (MLX layout) of such an original: 1 where the original
  /// holds w of a multiplier 1 + w and MLX the multiplier. Null: nothing ever.
  float (*conversion_shift)(const nlohmann::json& config, const format::TensorStore& store,
                            const std::string& name) = nullptr;
};

/// The family that serves this config ("model_type", read from text_config too), or null.
const Family* find_family(const nlohmann::json& config);
std::span<const Family> all_families();

}  // namespace tensorfold::families
