// Structured output: what a request says its answer must look like, and the compiled grammars.
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "server/json_body.h"
#include "text/grammar/matcher.h"

namespace tensorfold::server {

/// What an answer must be.
struct OutputFormat {
  enum class Kind { json_object, json_value, json_schema, regex, choice, grammar };
  Kind kind = Kind::json_object;
  Json value;          ///< the schema, the pattern, the list of texts, the grammar
  std::string field;   ///< that asked for it, for messages
  bool blanks = true;  ///< of JSON: whether there may be any between tokens
};

/// The fields of read_output_format() that other dialects than chat take under the same names.
inline constexpr std::array output_format_fields = {
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "grammar", "json_schema"};

/// Reads response_format (OpenAI), guided_* and structured_outputs (vLLM), grammar and json_schema (llama.cpp), in
/// this order; the first that asks for something counts. Nothing: the answer is free. Throws ApiError (400) for a
/// field that is malformed or asks for what is not known.
std::optional<OutputFormat> read_output_format(const Json& body);

/// Compiled grammars, the most recently used ones. Any thread.
class GrammarStore {
 public:
  /// Throws ApiError (400) with what cannot be enforced and its path in the schema.
  std::shared_ptr<text::grammar::Matcher> get(const OutputFormat& format,
                                              const std::shared_ptr<const text::grammar::Vocabulary>& vocabulary);

 private:
  using Entry = std::pair<std::string, std::shared_ptr<text::grammar::Matcher>>;
  std::mutex mutex_;
  std::list<Entry> entries_;  ///< newest first
  std::unordered_map<std::string, std::list<Entry>::iterator> places_;
};

}  // namespace tensorfold::server
