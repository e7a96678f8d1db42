// A model ready to answer: everything between a directory's name and a running engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "cli/model_options.h"
#include "engine/engine.h"
#include "families/model.h"
#include "server/prompt_renderer.h"
#include "server/service.h"
#include "text/tokenizer.h"

namespace tensorfold::cli {

/// The id a model is served under: the last component of its name.
std::string served_name(const std::string& model);

/// Members are destroyed bottom up: the engine stops before what it uses goes.
struct LoadedModel {
  std::string directory;
  std::vector<std::string> notes;  ///< what a user should know about the checkpoint
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<server::PromptRenderer> renderer;
  std::unique_ptr<backend::Backend> backend;
  std::string backend_name;
  std::unique_ptr<families::Model> model;
  std::vector<int32_t> end_tokens;
  std::unique_ptr<engine::Engine> engine;
  double load_seconds = 0.0;

  /// What the server needs of it; valid while this lives.
  [[nodiscard]] server::ServedModel served() const;
};

/// Reads the text side first (its mistakes show at once), then the weights, then starts the engine. Throws Error.
std::unique_ptr<LoadedModel> load_model(const std::string& model, const RunOptions& options);

}  // namespace tensorfold::cli
