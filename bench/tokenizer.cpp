// Speed of loading, encoding and decoding.
//
// The vocabularies of real models are not part of the project: TENSORFOLD_TOKENIZERS names a folder with one folder a
// model (each with its tokenizer.json); without it the demonstration model's small one is measured. Encoding has no
// hard floor; as a yardstick `scan` is the time to look once at every byte and count the letters.
#include "text/tokenizer.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

namespace {

using tensorfold::text::Tokenizer;

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::filesystem::path> models() {
  std::vector<std::filesystem::path> result;
  if (const char* root = std::getenv("TENSORFOLD_TOKENIZERS")) {
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      if (std::filesystem::exists(entry.path() / "tokenizer.json")) result.push_back(entry.path());
    }
  }
  if (result.empty()) result.emplace_back(TENSORFOLD_SOURCE_DIR "/models/demo");
  return result;
}

// Program text and English prose: the project's own sources, 4 MB of them.
const std::string& mixed_text() {
  static const std::string text = [] {
    std::string once;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(TENSORFOLD_SOURCE_DIR "/src")) {
      const std::string extension = entry.path().extension().string();
      if ((extension == ".cpp" || extension == ".h") && entry.path().filename() != "unicode_tables.cpp")
        once += read(entry.path());
    }
    std::string result;
    while (!once.empty() && result.size() < 4'000'000) result += once;
    return result;
  }();
  return text;
}

// Words that never repeat, so that no cache helps: the worst ordinary case.
const std::string& fresh_words() {
  static const std::string text = [] {
    std::string result;
    std::uint64_t state = 88172645463325252ULL;
    while (result.size() < 4'000'000) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      result += ' ';
      for (std::uint64_t word = state, i = 0; i < 4 + state % 7; ++i, word /= 26)
        result += static_cast<char>('a' + word % 26);
    }
    return result;
  }();
  return text;
}

const Tokenizer& loaded(const std::filesystem::path& folder) {
  static std::map<std::string, Tokenizer> all;
  const auto found = all.find(folder.string());
  return (found != all.end() ? found : all.emplace(folder.string(), Tokenizer::load(folder.string())).first)->second;
}

void load(benchmark::State& state, const std::filesystem::path& folder) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(folder.string()).vocabulary_size());
  state.SetBytesProcessed(
      static_cast<std::int64_t>(state.iterations() * std::filesystem::file_size(folder / "tokenizer.json")));
}

void encode(benchmark::State& state, const std::filesystem::path& folder, const std::string& text) {
  const Tokenizer& tokenizer = loaded(folder);
  std::size_t tokens = 0;
  for (auto _ : state) tokens = tokenizer.encode(text).size();
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * text.size()));
  state.counters["tokens"] = static_cast<double>(tokens);
}

void decode(benchmark::State& state, const std::filesystem::path& folder) {
  const Tokenizer& tokenizer = loaded(folder);
  const std::vector<std::int32_t> ids = tokenizer.encode(mixed_text());
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.decode(ids).size());
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations() * ids.size()));
}

void scan(benchmark::State& state) {
  for (auto _ : state) {
    std::size_t letters = 0;
    for (const char c : mixed_text()) letters += c >= 'a' && c <= 'z' ? 1 : 0;
    benchmark::DoNotOptimize(letters);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * mixed_text().size()));
}

const bool registered = [] {
  benchmark::RegisterBenchmark("scan", scan)->Unit(benchmark::kMillisecond);
  for (const std::filesystem::path& folder : models()) {
    const std::string name = folder.filename().string();
    const auto add = [](const std::string& what, auto&& function) {
      benchmark::RegisterBenchmark(what.c_str(), function)->Unit(benchmark::kMillisecond);
    };
    add("load/" + name, [folder](benchmark::State& state) { load(state, folder); });
    add("encode_mixed/" + name, [folder](benchmark::State& state) { encode(state, folder, mixed_text()); });
    add("encode_fresh_words/" + name, [folder](benchmark::State& state) { encode(state, folder, fresh_words()); });
    add("encode_one_letter/" + name,
        [folder](benchmark::State& state) { encode(state, folder, std::string(1'000'000, 'a')); });
    add("encode_spaces/" + name,
        [folder](benchmark::State& state) { encode(state, folder, std::string(1'000'000, ' ')); });
    add("decode/" + name, [folder](benchmark::State& state) { decode(state, folder); });
  }
  return true;
}();

}  // namespace
