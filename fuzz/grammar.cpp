// Any bytes as a grammar: refused with one Error, or compiled; then walked along its own masks, each of which must
// agree with what the grammar says of every token. The first byte chooses the kind.
#include "text/grammar/grammar.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/grammar/matcher.h"

using namespace tensorfold::text::grammar;

namespace {

std::shared_ptr<const Vocabulary> vocabulary() {
  static const auto shared = [] {
    std::vector<std::string> tokens = {""};
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* token :
         {"{\"", "\":", "\",", "\"}", "ab", "aaaa", "\\u", "true", "12", "é", "\xE6\x97", "  ", "]}"}) {
      tokens.emplace_back(token);
    }
    return std::make_shared<const Vocabulary>(tokens);
  }();
  return shared;
}

Automaton compiled(uint8_t kind, std::string_view text) {
  switch (kind % 4) {
    case 0:
      return compile_regex(text);
    case 1:
      return compile_ebnf(text);
    case 2:
      return compile_choice(
          {std::string(text.substr(0, text.size() / 2)), std::string(text.substr(text.size() / 2)), "x"});
    default: {
      const auto schema = nlohmann::ordered_json::parse(text.begin(), text.end(), nullptr, false);
      if (schema.is_discarded()) tensorfold::fail(tensorfold::ErrorKind::invalid_request, "not JSON");
      return compile_json_schema(schema);
    }
  }
}

void walk(Matcher& matcher, uint64_t choice) {
  const Vocabulary& tokens = matcher.vocabulary();
  Matcher::Cursor cursor = matcher.begin();
  TokenMask mask(tokens.words());
  for (int step = 0; step < 12; ++step) {
    const auto standing = matcher.mask(cursor, {}, mask);
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < static_cast<int32_t>(tokens.size()); ++token) {
      const bool set = (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1U) != 0;
      const bool fits =
          !tokens.bytes(token).empty() && matcher.standing(cursor, tokens.bytes(token)) != Matcher::Standing::dead;
      tensorfold::check(set == fits, "a mask that differs from its grammar");
      if (set) allowed.push_back(token);
    }
    tensorfold::check(allowed.empty() == (standing == Matcher::Standing::exhausted), "a text that cannot be completed");
    if (allowed.empty()) return;
    choice = choice * 6364136223846793005ULL + 1442695040888963407ULL;
    tensorfold::check(matcher.advance(cursor, tokens.bytes(allowed[(choice >> 33U) % allowed.size()])),
                      "an allowed token");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 4096) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    Matcher matcher(compiled(data[0], text), vocabulary());
    walk(matcher, size * 2654435761U + data[size - 1]);
  } catch (const tensorfold::Error& failure) {
    if (failure.kind() == tensorfold::ErrorKind::internal) throw;
  }
  return 0;
}
