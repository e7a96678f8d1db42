// Texts against the demonstration model's tokenizer, and component descriptions against the loader. The first byte
// chooses.
#include "text/tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace {

using namespace tensorfold;
using Ids = std::vector<std::int32_t>;

void require(bool holds) {
  if (!holds) std::abort();
}

const text::Tokenizer& demo() {
  static const text::Tokenizer tokenizer = text::Tokenizer::load(TENSORFOLD_SOURCE_DIR "/models/demo");
  return tokenizer;
}

// Byte 1 begins a trusted piece, byte 2 an untrusted one.
std::vector<text::TextPiece> pieces_of(std::string_view data) {
  std::vector<text::TextPiece> pieces(1);
  for (const char c : data) {
    if (c == 1 || c == 2) {
      pieces.push_back({"", c == 1});
    } else {
      pieces.back().text += c;
    }
  }
  return pieces;
}

void check_text(std::string_view data) {
  const std::vector<text::TextPiece> pieces = pieces_of(data);
  const Ids ids = demo().encode(pieces);
  std::string joined;
  for (const text::TextPiece& piece : pieces) joined += replace_invalid_utf8(piece.text);
  const Ids plain = demo().encode(joined, {.added_tokens = text::AddedTokenSearch::none});
  require(std::none_of(plain.begin(), plain.end(), [](std::int32_t id) { return demo().is_added(id); }));
  if (std::none_of(pieces.begin(), pieces.end(), [](const text::TextPiece& piece) { return piece.trusted; })) {
    require(ids == plain);
  }
  text::StreamingDecoder decoder(demo());
  std::string streamed;
  for (const std::int32_t id : ids) {
    const std::string piece = decoder.push(id);
    require(is_valid_utf8(piece));
    streamed += piece;
  }
  streamed += decoder.flush();
  require(streamed == demo().decode(ids));
}

void check_component(std::string_view name, std::string_view data) {
  std::string file = R"({"added_tokens":[{"id":3,"content":"<s>","normalized":true}],"model":{"type":"BPE","vocab":)"
                     R"({"a":0,"b":1,"ab":2,"<s>":3},"merges":["a b"]},")";
  file += name;
  file += "\":";
  file += data;
  file += '}';
  try {
    const text::Tokenizer tokenizer = text::Tokenizer::parse(file);
    const Ids ids = tokenizer.encode(" ab<s>\xC3\xA9 1a\n", {.add_special_tokens = true});
    require(is_valid_utf8(tokenizer.decode(ids)));
  } catch (const Error& error) {
    require(error.kind() != ErrorKind::internal);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view data(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  switch (bytes[0] % 8) {
    case 0:
      check_component("normalizer", data);
      break;
    case 1:
      check_component("pre_tokenizer", data);
      break;
    case 2:
      check_component("decoder", data);
      break;
    case 3:
      check_component("post_processor", data);
      break;
    default:
      check_text(data);
  }
  return 0;
}
