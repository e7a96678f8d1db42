// What a grammar costs a drawn row at a vocabulary of 248,320 tokens: the goal is 100 microseconds once it is warm.
//
// The vocabulary is made up (words with and without a blank in front, punctuation as JSON has it, characters of other
// scripts, pieces of characters), because real ones are not part of the project. `warm` walks a reply that has been
// walked before, as the second request with a schema does; `cold` is the same reply for a grammar just compiled;
// `fresh_strings` is a grammar that is warm but for the place it stands at: every reply opens objects and strings in a
// nesting that was never seen. The floor is `copy`, the bits of a mask copied.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "text/grammar/grammar.h"
#include "text/grammar/matcher.h"

namespace {

using namespace tensorfold::text::grammar;

constexpr size_t vocabulary_size = 248'320;

std::shared_ptr<const Vocabulary> vocabulary() {
  static const std::shared_ptr<const Vocabulary> shared = [] {
    std::mt19937 random(1);
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    const std::vector<std::string> syllables = {"an", "be", "co", "de", "er", "fi", "gu", "ha", "in", "jo", "ka", "le",
                                                "mi", "no", "or", "pe", "qu", "re", "st", "th", "un", "ve", "wo", "y"};
    const std::string marks = "{}[]\":,.\\/ \n\t'()=-+_<>#!?;*&";
    while (tokens.size() < vocabulary_size) {
      std::string token;
      const auto kind = random() % 20;
      if (kind < 13) {
        if (random() % 2 == 0) token = " ";
        for (size_t k = 1 + random() % 5; k > 0; --k) token += syllables[random() % syllables.size()];
        if (random() % 3 == 0) token[token.find_first_not_of(' ')] = static_cast<char>('A' + random() % 26);
      } else if (kind < 15) {
        for (size_t k = 1 + random() % 6; k > 0; --k) token += marks[random() % marks.size()];
      } else if (kind < 16) {
        token = syllables[random() % syllables.size()] + marks[random() % marks.size()];
      } else if (kind < 19) {
        for (size_t k = 1 + random() % 3; k > 0; --k) {
          token += static_cast<char>(0xE4 + random() % 6);
          token += static_cast<char>(0x80 + random() % 64);
          token += static_cast<char>(0x80 + random() % 64);
        }
      } else {
        token = {static_cast<char>(0xE4 + random() % 6), static_cast<char>(0x80 + random() % 64)};
      }
      tokens.push_back(token);
    }
    return std::make_shared<const Vocabulary>(tokens);
  }();
  return shared;
}

struct Subject {
  const char* name;
  const char* schema;
  std::vector<std::string> reply;  ///< as tokens
};

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = {
      {"person",
       R"({"type":"object","properties":{"name":{"type":"string","maxLength":24},"age":{"type":"integer","minimum":0,
          "maximum":150},"city":{"enum":["Oslo","Paris","Tokyo"]},"tags":{"type":"array","items":{"type":"string"},
          "maxItems":4}},"required":["name","age","city"],"additionalProperties":false})",
       {"{\"",  "name", "\":",  " \"", "Mia",   " An",   "der", "son", "\",",  " \"", "age",
        "\": ", "3",    "1",    ",",   " \"",   "city",  "\":", " \"", "Oslo", "\",", " \"",
        "tags", "\":",  " [\"", "a",   " long", " word", "\",", " \"", "b",    "\"]", "}"}},
      {"tool_call",
       R"({"type":"object","properties":{"path":{"type":"string"},"edits":{"type":"array","items":{"type":"object",
          "properties":{"line":{"type":"integer"},"text":{"type":"string"}},"required":["line","text"]}},
          "when":{"type":"string","format":"date-time"}},"required":["path","edits"]})",
       {"{\"", "path", "\":",  " \"", "src",  "/",    "main", ".",      "cpp",  "\",", " \"", "edits", "\":",
        " [",  "{\"",  "line", "\":", " ",    "12",   ",",    " \"",    "text", "\":", " \"", "int",   " main",
        "()",  "\\n",  "\"",   "},",  " {\"", "line", "\":",  " ",      "7",    ",",   " \"", "text",  "\":",
        " \"", "x",    "\"",   "}",   "],",   " \"",  "when", "\": \"", "2026", "-",   "11",  "-",     "30",
        "T",   "10",   ":",    "00",  ":",    "00",   "Z",    "\"",     "}"}},
      {"any_json", "true", {"{\"",  "a",   "\":",   " [",     "1",  ",",   " {\"", "b",     "\":",   " \"",
                            "text", " of", " some", " words", "\"", "}",   ",",    " null", ",",     " -",
                            "12",   ".",   "5",     "]",      ",",  " \"", "c",    "\":",   " true", "}"}}};
  return all;
}

size_t run(Matcher& matcher, const std::vector<std::string>& reply, TokenMask& bits) {
  Matcher::Cursor cursor = matcher.begin();
  size_t rows = 0;
  for (const std::string& token : reply) {
    matcher.mask(cursor, {}, bits);
    if (!matcher.advance(cursor, token)) std::abort();
    ++rows;
  }
  matcher.mask(cursor, {}, bits);
  return rows + 1;
}

Automaton compiled(const Subject& subject) {
  return compile_json_schema(nlohmann::ordered_json::parse(subject.schema));
}

void report(benchmark::State& state, size_t rows) {
  state.counters["a_row"] =
      benchmark::Counter(static_cast<double>(rows), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void copy(benchmark::State& state) {
  const TokenMask from(vocabulary()->words(), 3U);
  TokenMask bits(vocabulary()->words());
  size_t rows = 0;
  for (auto _ : state) {
    std::copy(from.begin(), from.end(), bits.begin());
    benchmark::DoNotOptimize(bits.data());
    ++rows;
  }
  report(state, rows);
}
BENCHMARK(copy);

void warm(benchmark::State& state) {
  const Subject& subject = subjects()[static_cast<size_t>(state.range(0))];
  Matcher matcher(compiled(subject), vocabulary());
  TokenMask bits(vocabulary()->words());
  run(matcher, subject.reply, bits);
  size_t rows = 0;
  for (auto _ : state) rows += run(matcher, subject.reply, bits);
  report(state, rows);
  state.SetLabel(subject.name);
}
BENCHMARK(warm)->DenseRange(0, 2);

void cold(benchmark::State& state) {
  const Subject& subject = subjects()[static_cast<size_t>(state.range(0))];
  const Automaton automaton = compiled(subject);
  TokenMask bits(vocabulary()->words());
  size_t rows = 0;
  for (auto _ : state) {
    Matcher matcher(automaton, vocabulary());
    rows += run(matcher, subject.reply, bits);
  }
  report(state, rows);
  state.SetLabel(subject.name);
}
BENCHMARK(cold)->DenseRange(0, 2)->Unit(benchmark::kMillisecond);

void fresh_strings(benchmark::State& state) {
  Matcher matcher(compile_json_value(), vocabulary());
  TokenMask bits(vocabulary()->words());
  Matcher::Cursor cursor = matcher.begin();
  size_t rows = 0;
  for (auto _ : state) {
    for (const char* token : {"{\"", "key", "\":", " \"", "text", "\",", " \"", "more", "\":", "[", "1", ",", " "}) {
      matcher.mask(cursor, {}, bits);
      if (!matcher.advance(cursor, token)) std::abort();
      ++rows;
    }
  }
  report(state, rows);
}
BENCHMARK(fresh_strings)->Iterations(200);

void compile_schema(benchmark::State& state) {
  const Subject& subject = subjects()[static_cast<size_t>(state.range(0))];
  for (auto _ : state) benchmark::DoNotOptimize(compiled(subject).states.size());
  state.SetLabel(subject.name);
}
BENCHMARK(compile_schema)->DenseRange(0, 1)->Unit(benchmark::kMicrosecond);

}  // namespace
