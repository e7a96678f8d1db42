#include "cli/loaded_model.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/console.h"
#include "base/error.h"
#include "cli/draft_models.h"
#include "cli/known_models.h"
#include "cli/memory_plan.h"
#include "cli/model_directory.h"
#include "drafters/drafter_set.h"
#include "families/checkpoint.h"
#include "format/config.h"

namespace tensorfold::cli {
namespace {

/// End tokens from the configs and the tokenizer's own end of text.
std::vector<int32_t> all_end_tokens(const LoadedModel& loaded, const format::GenerationDefaults& generation) {
  std::vector<int32_t> ends = generation.end_tokens;
  const std::vector<int32_t>& from_family = loaded.model->info().end_tokens;
  ends.insert(ends.end(), from_family.begin(), from_family.end());
  if (const auto name = loaded.tokenizer->named_token("eos_token")) {
    if (const auto id = loaded.tokenizer->id_of(*name)) ends.push_back(*id);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

drafters::DrafterChoice drafter_choice(const RunOptions& options, const families::ModelInfo& info) {
  drafters::DrafterChoice choice;
  if (options.drafter == "none") choice.mtp = false;
  if (options.drafter == "auto")
    choice.block_drafter = cached_drafter(info);
  else if (options.drafter != "none")
    choice.block_drafter = model_directory(options.drafter);
  choice.block_options.bits = options.drafter_bits;
  choice.mtp_options.most = options.mtp_drafts;
  choice.mtp_options.confidence = static_cast<float>(options.mtp_confidence);
  if (options.mtp_drafts == 0) choice.mtp = false;
  return choice;
}

/// The drafters of the options. One that was found and not asked for is left out, with a note, when it does not load.
std::vector<std::unique_ptr<drafters::Drafter>> make_drafters(LoadedModel& loaded, const RunOptions& options) {
  drafters::DrafterChoice choice = drafter_choice(options, loaded.model->info());
  const bool found = options.drafter == "auto" && choice.block_drafter.has_value();
  try {
    return drafters::make_drafters(*loaded.backend, *loaded.model, choice);
  } catch (const Error& error) {
    if (!found) throw;
    loaded.notes.push_back(
        fmt::format("the draft model in {} is not used: {}", choice.block_drafter->string(), error.what()));
  }
  choice.block_drafter.reset();
  return drafters::make_drafters(*loaded.backend, *loaded.model, choice);
}

std::unique_ptr<backend::Backend> make_backend(const RunOptions& options, std::string& name) {
  name = options.backend;
  if (name != "cpu") {
    try {
      auto made = backend::make_cuda_backend(options.device);
      name = "cuda";
      return made;
    } catch (const Error&) {
      if (options.backend == "cuda") throw;
    }
  }
  name = "cpu";
  return backend::make_cpu_backend(options.threads);
}

/// 0: auto.
int32_t lanes_of(const std::string& text) {
  if (text == "auto") return 0;
  constexpr int32_t kMost = 1024;
  const bool digits = !text.empty() && text.size() < 5 && text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoi(text) < 1 || std::stoi(text) > kMost)
    fail(ErrorKind::invalid_request, "--parallel must be auto or a number from 1 to {}, not \"{}\"", kMost, text);
  return std::stoi(text);
}

void check_options(const RunOptions& options) {
  if (options.context < 0) fail(ErrorKind::invalid_request, "--context must be 0 or a positive token count");
  check_threads(options.threads);
  (void)lanes_of(options.parallel);
  if (options.prefill_rows < 1) fail(ErrorKind::invalid_request, "--prefill-rows must be at least 1");
  if (options.decode_share < 0.0 || options.decode_share > 1.0) {
    fail(ErrorKind::invalid_request, "--decode-share must lie between 0 and 1");
  }
  if (options.drafter_bits < 0 || options.mtp_drafts < 0) {
    fail(ErrorKind::invalid_request, "--drafter-bits and --mtp-drafts must not be negative");
  }
  if (options.mtp_confidence < 0.0 || options.mtp_confidence > 1.0) {
    fail(ErrorKind::invalid_request, "--mtp-confidence must lie between 0 and 1");
  }
  if (!is_memory(options.cache_gib)) fail(ErrorKind::invalid_request, "--cache-gib must be 0 or a positive size");
  if (!is_memory(options.prompt_cache_gib.value_or(0.0)) || !is_memory(options.spill_gib) ||
      options.checkpoint_slots < 0) {
    fail(ErrorKind::invalid_request, "--prompt-cache-gib, --spill-gib and --checkpoint-slots must not be negative");
  }
}

uint64_t bytes_of_gib(double gib) { return static_cast<uint64_t>(gib * 1073741824.0); }

/// What the configuration alone tells, before anything large is fetched or read: whether a family here serves the
/// model, in this context, in this memory. Returns the bytes for its caches.
uint64_t check_model(const std::string& model, const RunOptions& options) {
  const families::CheckpointReport report = families::describe_checkpoint(config_directory(model));
  if (options.context > report.info.native_context) {
    fail(ErrorKind::invalid_request, "--context {} is more than the model's window of {} tokens", options.context,
         report.info.native_context);
  }
  const Machine machine = machine_of(options.backend, options.device);
  const bool drafts = options.drafts && options.drafter != "none" && options.mtp_drafts > 0;
  const MemoryNeeds needs = memory_needs(report, machine, drafts);
  const int32_t least = std::min(options.context > 0 ? options.context : 256, report.info.native_context);
  const uint64_t caches = options.cache_gib > 0.0 ? bytes_of_gib(options.cache_gib)
                                                  : cache_bytes(needs, least, std::max(1, lanes_of(options.parallel)),
                                                                options.checkpoint_slots);
  const uint64_t available = options.cache_gib > 0.0 ? machine.memory : usable_memory(machine);
  if (needs.weights + caches > available) {
    fail(ErrorKind::capacity,
         "{} needs {} for its weights and {} for caches; of the {} of {} {} are for models (`tensorfold plan {}` says "
         "what would fit{})",
         model, gigabytes(needs.weights), gigabytes(caches), gigabytes(machine.memory), machine.name,
         gigabytes(available), model,
         machine.is_gpu && options.backend == "auto" ? "; --backend cpu leaves the GPU" : "");
  }
  return options.cache_gib > 0.0 ? caches : available - needs.weights;
}

/// Where kept prefixes go when the user names no folder.
std::filesystem::path default_snapshot_directory() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base = cache != nullptr && *cache != '\0' ? std::filesystem::path(cache)
                                     : home != nullptr                  ? std::filesystem::path(home) / ".cache"
                                                                        : std::filesystem::temp_directory_path();
  return base / "tensorfold" / "prefixes";
}

/// The files a model was read from, by name, size and time: kept prefixes are worth nothing with others.
std::string weights_identity(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string extension = file.path().extension().string();
    if (extension != ".safetensors" && extension != ".json") continue;
    files.push_back(fmt::format("{}:{}:{}", file.path().filename().string(), file.file_size(ignored),
                                file.last_write_time(ignored).time_since_epoch().count()));
  }
  std::sort(files.begin(), files.end());
  return fmt::format("{}", fmt::join(files, ","));
}

void keep_prefixes_as(const RunOptions& options, const std::string& directory, engine::EngineOptions& engine) {
  engine.keep_prefixes = options.prompt_cache_gib.value_or(1.0) > 0.0;
  engine.host_bytes = bytes_of_gib(options.prompt_cache_gib.value_or(0.0));
  engine.kept_states = options.checkpoint_slots;
  engine.log = [](const std::string& line) { say_line(stderr, line); };
  if (options.spill_gib <= 0.0) return;
  engine.disk_bytes = bytes_of_gib(options.spill_gib);
  engine.snapshot_directory =
      options.snapshot_dir.empty() ? default_snapshot_directory() : std::filesystem::path(options.snapshot_dir);
  engine.weights_identity = weights_identity(directory);
}

}  // namespace

std::string served_name(const std::string& model) {
  std::filesystem::path path(model);
  if (!path.has_filename()) path = path.parent_path();
  std::error_code ignored;
  if (path.filename() == "." || path.filename() == "..") path = std::filesystem::canonical(path, ignored);
  return path.filename().string();
}

server::ServedModel LoadedModel::served() const {
  server::ServedModel served;
  served.engine = engine.get();
  served.tokenizer = tokenizer.get();
  served.renderer = renderer.get();
  served.end_tokens = end_tokens;
  // Ids beyond the tokenizer's are rows that the model has for padding. They can be drawn, so they can be sent back.
  served.vocabulary = model->info().vocabulary_size;
  return served;
}

std::unique_ptr<LoadedModel> load_model(const std::string& model, const RunOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  check_options(options);
  auto loaded = std::make_unique<LoadedModel>();
  const uint64_t cache_budget = check_model(model, options);
  loaded->directory = with_draft_head(model, model_directory(model));
  const format::CheckpointConfig config = format::load_config(loaded->directory);
  const families::ModelInfo info = families::require_family(config.json).describe(config.json);
  loaded->tokenizer = std::make_unique<text::Tokenizer>(text::Tokenizer::load(loaded->directory));
  loaded->renderer = std::make_unique<server::PromptRenderer>(*loaded->tokenizer, loaded->directory, info.model_type);
  loaded->backend = make_backend(options, loaded->backend_name);
  engine::EngineOptions engine_options;
  engine_options.context = options.context > 0 ? options.context : info.default_context;
  engine_options.parallel = lanes_of(options.parallel);
  engine_options.prefill_rows = options.prefill_rows;
  engine_options.decode_share = options.decode_share;
  engine_options.drafts = options.drafts;
  engine_options.memory_budget = cache_budget;
  keep_prefixes_as(options, loaded->directory, engine_options);
  families::LoadedModel read =
      families::load_model(loaded->directory, *loaded->backend, engine::forward_rows(engine_options));
  loaded->model = std::move(read.model);
  loaded->notes = std::move(read.notes);
  if (!loaded->renderer->has_template()) {
    loaded->notes.emplace_back(
        "the model has no chat template: chat requests are refused; /v1/completions and generate --raw take a text as "
        "it is");
  }
  if (std::string note = untested_note(model, info.model_type); !note.empty()) loaded->notes.push_back(std::move(note));
  loaded->end_tokens = all_end_tokens(*loaded, read.generation);
  std::vector<std::unique_ptr<drafters::Drafter>> drafters;
  if (options.drafts) {
    if (options.drafter == "auto") {
      for (std::string& hint : draft_hints(families::describe_checkpoint(loaded->directory)))
        loaded->notes.push_back(std::move(hint));
    }
    drafters = make_drafters(*loaded, options);
  }
  loaded->engine = engine::start_engine(*loaded->backend, *loaded->model, engine_options, std::move(drafters));
  loaded->load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return loaded;
}

}  // namespace tensorfold::cli
