#include "text/tokenizer_post_processor.h"

#include "base/error.h"

namespace tensorfold::text {
namespace {

constexpr int deepest_nesting = 32;

// A processor that surrounds what the ones before it have made.
void surround(const PostProcessor& outer, PostProcessor& result) {
  result.prefix.insert(result.prefix.begin(), outer.prefix.begin(), outer.prefix.end());
  result.suffix.insert(result.suffix.end(), outer.suffix.begin(), outer.suffix.end());
}

void append_special(const JsonValue& special_tokens, std::string_view name, std::vector<std::int32_t>& out) {
  constexpr std::string_view where = "post_processor TemplateProcessing";
  const JsonValue* entry = find_member(special_tokens, std::string(name).c_str());
  if (entry == nullptr) {
    fail(ErrorKind::corrupt_file, "tokenizer.json: {}: the special token '{}' is not described", where, name);
  }
  for (const JsonValue& id : array_member(*entry, "ids", where).GetArray()) out.push_back(token_id(id, where));
}

PostProcessor make_template(const JsonValue& value) {
  constexpr std::string_view where = "post_processor TemplateProcessing";
  const JsonValue& special_tokens = object_member(value, "special_tokens", where);
  PostProcessor result;
  bool seen_text = false;
  for (const JsonValue& piece : array_member(value, "single", where).GetArray()) {
    if (const JsonValue* special = find_member(piece, "SpecialToken")) {
      append_special(special_tokens, string_member(*special, "id", where), seen_text ? result.suffix : result.prefix);
    } else if (find_member(piece, "Sequence") != nullptr && !seen_text) {
      seen_text = true;
    } else {
      fail(ErrorKind::unsupported, "tokenizer.json: {}: 'single' must be special tokens around one Sequence", where);
    }
  }
  if (!seen_text) fail(ErrorKind::unsupported, "tokenizer.json: {}: 'single' has no Sequence", where);
  return result;
}

PostProcessor make_bert(const JsonValue& value, std::string_view where) {
  const auto id = [&](const char* name) {
    const JsonValue& pair = array_member(value, name, where);
    if (pair.Size() != 2)
      fail(ErrorKind::corrupt_file, "tokenizer.json: {}: '{}' must be a token and its id", where, name);
    return token_id(pair[1], where);
  };
  return {{id("cls")}, {id("sep")}};
}

void add(const JsonValue& value, int depth, PostProcessor& result) {
  const std::string_view type = string_member(value, "type", "post_processor");
  if (depth > deepest_nesting)
    fail(ErrorKind::corrupt_file, "tokenizer.json: post_processor sequences are nested too deep");
  if (type == "Sequence") {
    for (const JsonValue& step : array_member(value, "processors", "post_processor Sequence").GetArray()) {
      add(step, depth + 1, result);
    }
  } else if (type == "TemplateProcessing") {
    surround(make_template(value), result);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    surround(make_bert(value, type), result);
  } else if (type != "ByteLevel") {
    fail(ErrorKind::unsupported, "tokenizer.json: the post_processor '{}' is not supported", type);
  }
}

}  // namespace

PostProcessor make_post_processor(const JsonValue* value) {
  PostProcessor result;
  if (value != nullptr) add(*value, 0, result);
  return result;
}

}  // namespace tensorfold::text
