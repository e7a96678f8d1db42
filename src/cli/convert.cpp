// tensorfold convert MODEL OUT
#include <chrono>
#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_directory.h"
#include "families/checkpoint.h"
#include "families/conversion.h"
#include "families/conversion_recipe.h"
#include "format/json_file.h"
#include "format/safetensors_store.h"

namespace tensorfold::cli {
namespace {

using nlohmann::json;

constexpr uint64_t kShardBytes = uint64_t{5} << 30;

struct ConvertArguments {
  std::string model;
  std::string out;
  int32_t bits = 4;
  int32_t group = 64;
  std::string recipe;
};

json read_object(const std::filesystem::path& path) {
  format::ProblemList problems;
  json object = format::read_json_object(path, uint64_t{16} << 20, problems);
  problems.throw_if_any(ErrorKind::corrupt_file, path.string());
  return object;
}

/// The block `quantization` of the result: from a file (config.json or the block alone), else from the options.
json quantization_block(const ConvertArguments& arguments, const families::Family& family, const json& config) {
  if (!arguments.recipe.ends_with(".json"))
    return families::make_quantization(family, config, arguments.bits, arguments.group, arguments.recipe);
  const json file = read_object(arguments.recipe);
  return file.contains("quantization") ? file["quantization"] : file;
}

/// Everything beside the tensors: tokenizer, templates, defaults.
void copy_companions(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::filesystem::path name = entry.path().filename();
    const std::string ending = name.extension().string();
    const bool wanted = ending == ".json" || ending == ".jinja" || ending == ".txt" || ending == ".model";
    if (!wanted || name == "config.json" || name.string().ends_with(".index.json") || !entry.is_regular_file())
      continue;
    std::filesystem::copy_file(entry.path(), to / name);
  }
}

/// config.json comes last and at once: a directory without it is no checkpoint.
void write_config(const json& config, const std::filesystem::path& directory) {
  const std::filesystem::path partial = directory / "config.json.partial";
  std::ofstream out(partial);
  out << config.dump(2) << '\n';
  out.close();
  if (!out) fail(ErrorKind::io, "{}: cannot write", partial.string());
  std::filesystem::rename(partial, directory / "config.json");
}

/// A line every ten percent.
std::function<void(uint64_t, uint64_t)> percent_printer() {
  const auto shown = std::make_shared<uint64_t>(0);
  return [shown](uint64_t done, uint64_t all) {
    const uint64_t percent = all == 0 ? 100 : done * 100 / all;
    if (percent / 10 == *shown / 10) return;
    *shown = percent;
    fmt::print("[tensorfold] {}% read\n", percent);
    std::fflush(stdout);
  };
}

int convert(const ConvertArguments& arguments) {
  const auto started = std::chrono::steady_clock::now();
  const std::filesystem::path from = model_directory(arguments.model);
  const std::filesystem::path to = arguments.out;
  if (std::filesystem::exists(to) && !std::filesystem::is_empty(to))
    fail(ErrorKind::invalid_request, "{} is there and not empty", to.string());
  json config = read_object(from / "config.json");
  const families::Family& family = families::require_family(config);
  if (format::Quantization::parse(config).global())
    fail(ErrorKind::invalid_request, "{} is packed already: convert the original", from.string());
  json packed = config;
  packed["quantization"] = quantization_block(arguments, family, config);
  packed["quantization_config"] = packed["quantization"];
  const auto quantization = format::Quantization::parse(packed);
  const auto store = format::SafetensorsStore::open_directory(from);
  const auto tensors = families::plan_conversion(family, config, *store, quantization);
  std::filesystem::create_directories(to);
  const auto result = families::write_conversion(tensors, *store, to, kShardBytes, percent_printer());
  copy_companions(from, to);
  write_config(packed, to);
  for (const std::string& note : families::open_checkpoint(to).notes) fmt::print("[tensorfold] {}\n", note);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  fmt::print("[tensorfold] {}: {:.3f} GB in {} files, {} modules packed ({}), {} tensors as they were, {:.1f} s\n",
             to.string(), static_cast<double>(result.bytes) / 1e9, result.shards, result.packed,
             quantization.describe(), result.plain, seconds);
  return 0;
}

}  // namespace

Command convert_command() {
  const auto arguments = std::make_shared<ConvertArguments>();
  Command command;
  command.name = "convert";
  command.summary = "Pack a float checkpoint in MLX's format";
  command.description =
      "Reads a checkpoint in bf16, f16 or f32 and writes one with affine codes (2 to 8 bits), row by row: it needs "
      "room "
      "on the disk, not in memory. Routers, norms and other small tensors stay as they are. The result is read here "
      "and by MLX.";
  command.positionals.push_back({"MODEL", "directory or owner/name of the original", &arguments->model});
  command.positionals.push_back({"OUT", "directory of the result, new or empty", &arguments->out});
  command.options.push_back({"--bits", "N", "bits a weight: 2, 3, 4, 5, 6 or 8", "", &arguments->bits, {}});
  command.options.push_back(
      {"--group", "N", "weights that share a scale and a bias: 32, 64 or 128", "", &arguments->group, {}});
  command.options.push_back({"--recipe",
                             "NAME",
                             fmt::format("more bits where they matter: {}; or a JSON file with the block "
                                         "`quantization` of a config.json",
                                         fmt::join(families::recipe_names(), ", ")),
                             "",
                             &arguments->recipe,
                             {}});
  command.run = [arguments] { return convert(*arguments); };
  return command;
}

}  // namespace tensorfold::cli
