// Reading tokenizer.json and tokenizer_config.json.
#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/presence.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_state.h"

namespace tensorfold::text {
namespace {

constexpr std::string_view model_place = "model";
// The largest real ones have 35 and 4 MB.
constexpr uint64_t largest_tokenizer = 256 << 20;
constexpr uint64_t largest_config = 64 << 20;

Vocabulary read_vocabulary(const JsonValue& model) {
  const JsonValue& entries = object_member(model, "vocab", model_place);
  std::size_t bytes = 0;
  for (const auto& entry : entries.GetObject()) bytes += entry.name.GetStringLength();
  Vocabulary vocabulary;
  vocabulary.reserve(entries.MemberCount(), bytes);
  for (const auto& entry : entries.GetObject()) {
    vocabulary.insert(json_string(entry.name), token_id(entry.value, json_string(entry.name)));
  }
  return vocabulary;
}

// A merge is a pair of strings, or in older files one string with a space between the two.
BpeMerge read_merge(const JsonValue& entry, std::size_t rank) {
  if (entry.IsArray() && entry.Size() == 2 && entry[0].IsString() && entry[1].IsString()) {
    return {json_string(entry[0]), json_string(entry[1])};
  }
  if (entry.IsString()) {
    const std::string_view text = json_string(entry);
    const std::size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  fail(ErrorKind::corrupt_file, "tokenizer.json: merge {} is not a pair of tokens", rank);
}

std::vector<BpeMerge> read_merges(const JsonValue& model) {
  const JsonValue& entries = array_member(model, "merges", model_place);
  std::vector<BpeMerge> merges;
  merges.reserve(entries.Size());
  for (const JsonValue& entry : entries.GetArray()) {
    if (entry.IsString() && json_string(entry).starts_with("#version")) continue;
    merges.push_back(read_merge(entry, merges.size()));
  }
  return merges;
}

BpeModel read_model(const JsonValue& root, bool byte_level) {
  const JsonValue& model = object_member(root, "model", "file");
  const std::string_view type = string_member_or(model, "type", "BPE", model_place);
  if (type != "BPE") fail(ErrorKind::unsupported, "tokenizer.json: the model '{}' is not supported, only BPE is", type);
  const JsonValue* dropout = find_member(model, "dropout");
  if (dropout != nullptr && (!dropout->IsNumber() || dropout->GetDouble() != 0)) {
    fail(ErrorKind::unsupported, "tokenizer.json: model: 'dropout' makes encoding random and is not supported");
  }
  BpeOptions options;
  if (find_member(model, "unk_token") != nullptr)
    options.unknown_token = string_member(model, "unk_token", model_place);
  options.continuing_prefix = string_member_or(model, "continuing_subword_prefix", "", model_place);
  options.end_of_word_suffix = string_member_or(model, "end_of_word_suffix", "", model_place);
  options.fuse_unknown = bool_member_or(model, "fuse_unk", false, model_place);
  options.byte_fallback = bool_member_or(model, "byte_fallback", false, model_place);
  options.ignore_merges = bool_member_or(model, "ignore_merges", false, model_place);
  options.byte_level = byte_level;
  const std::vector<BpeMerge> merges = read_merges(model);
  return {read_vocabulary(model), merges, std::move(options)};
}

AddedToken read_added_token(const JsonValue& entry, std::int32_t id) {
  constexpr std::string_view where = "added token";
  AddedToken token;
  token.id = id;
  token.content = string_member(entry, "content", where);
  token.special = bool_member_or(entry, "special", false, where);
  token.left_strip = bool_member_or(entry, "lstrip", false, where);
  token.right_strip = bool_member_or(entry, "rstrip", false, where);
  token.single_word = bool_member_or(entry, "single_word", false, where);
  token.normalized = bool_member_or(entry, "normalized", !token.special, where);
  return token;
}

// Adds a token unless one with its content is there already (then the first stays, as in the library).
void add_token(AddedToken token, Tokenizer::State& state) {
  if (token.content.empty()) return;
  if (state.added_ids.contains(token.content)) return;
  const std::optional<std::int32_t> known = state.model.vocabulary().find(token.content);
  if (known && *known != token.id) {
    fail(ErrorKind::corrupt_file, "tokenizer.json: the added token '{}' has id {}, but the vocabulary gives it {}",
         token.content, token.id, *known);
  }
  const AddedToken* holder = state.find_added(token.id);
  const std::optional<std::string_view> other =
      holder != nullptr ? std::optional<std::string_view>(holder->content) : state.model.vocabulary().token(token.id);
  if (other && *other != token.content) {
    fail(ErrorKind::corrupt_file, "tokenizer.json: the id {} belongs to two tokens, '{}' and '{}'", token.id, *other,
         token.content);
  }
  const auto index = static_cast<std::size_t>(token.id);
  if (index >= state.added_index.size()) state.added_index.resize(index + 1, -1);
  state.added_index[index] = static_cast<std::int32_t>(state.added.size());
  state.added_ids.emplace(token.content, token.id);
  state.added.push_back(std::move(token));
}

void read_added_tokens(const JsonValue& root, Tokenizer::State& state) {
  if (find_member(root, "added_tokens") == nullptr) return;
  for (const JsonValue& entry : array_member(root, "added_tokens", "file").GetArray()) {
    const JsonValue* id = find_member(entry, "id");
    if (id == nullptr) fail(ErrorKind::corrupt_file, "tokenizer.json: added token: 'id' is missing");
    add_token(read_added_token(entry, token_id(*id, "added token")), state);
  }
}

std::int32_t id_of_key(std::string_view key) {
  std::int64_t id = 0;
  const bool digits = !key.empty() && key.size() <= 8 && key.find_first_not_of("0123456789") == std::string_view::npos;
  for (const char c : digits ? key : std::string_view()) id = id * 10 + (c - '0');
  if (!digits || id >= 1 << 24) {
    fail(ErrorKind::corrupt_file, "tokenizer_config.json: '{}' in added_tokens_decoder is not a token id", key);
  }
  return static_cast<std::int32_t>(id);
}

void read_config(const JsonValue& config, Tokenizer::State& state) {
  if (const JsonValue* entries = find_member(config, "added_tokens_decoder")) {
    if (!entries->IsObject())
      fail(ErrorKind::corrupt_file, "tokenizer_config.json: 'added_tokens_decoder' must be an object");
    std::vector<AddedToken> tokens;
    for (const auto& entry : entries->GetObject()) {
      tokens.push_back(read_added_token(entry.value, id_of_key(json_string(entry.name))));
    }
    std::sort(tokens.begin(), tokens.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
    for (AddedToken& token : tokens) add_token(std::move(token), state);
  }
  for (const char* name :
       {"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"}) {
    const JsonValue* value = find_member(config, name);
    if (value != nullptr && value->IsObject()) value = find_member(*value, "content");
    if (value != nullptr && value->IsString()) state.named_tokens.emplace(name, json_string(*value));
  }
}

void fill_finders(Tokenizer::State& state) {
  std::sort(state.added.begin(), state.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  for (std::size_t i = 0; i < state.added.size(); ++i) {
    const AddedToken& token = state.added[i];
    state.added_index[static_cast<std::size_t>(token.id)] = static_cast<std::int32_t>(i);
    if (!token.normalized) {
      state.raw_finder.add(token.content, token);
      state.added_texts.push_back(token.content);
      continue;
    }
    MarkedText content{token.content, {}, false};
    if (state.normalizer) state.normalizer->apply(content);
    state.added_texts.push_back(content.text);
    state.normalized_finder.add(std::move(content.text), token);
  }
}

}  // namespace

Tokenizer Tokenizer::parse(std::string tokenizer_json, std::string config_json) {
  const JsonDocument file = parse_json(std::move(tokenizer_json), "tokenizer.json");
  const JsonValue& root = file.document;
  PreTokenizerPipeline pre_tokenizer = make_pre_tokenizer(find_member(root, "pre_tokenizer"));
  auto state = std::make_unique<State>(read_model(root, pre_tokenizer.byte_level));
  state->pre_tokenizer = std::move(pre_tokenizer);
  state->normalizer = make_normalizer(find_member(root, "normalizer"));
  state->post_processor = make_post_processor(find_member(root, "post_processor"));
  state->decoder = make_decoder(find_member(root, "decoder"));
  read_added_tokens(root, *state);
  if (!config_json.empty()) {
    const JsonDocument config = parse_json(std::move(config_json), "tokenizer_config.json");
    read_config(config.document, *state);
  }
  fill_finders(*state);
  return Tokenizer(std::move(state));
}

Tokenizer Tokenizer::load(const std::string& directory) {
  const std::filesystem::path folder(directory);
  const std::filesystem::path config = folder / "tokenizer_config.json";
  std::string tokenizer_text = read_text_file(folder / "tokenizer.json", largest_tokenizer);
  std::string config_text = has_file(config) ? read_text_file(config, largest_config) : std::string();
  try {
    return parse(std::move(tokenizer_text), std::move(config_text));
  } catch (const Error& failure) {
    fail(failure.kind(), "{}: {}", directory, failure.what());
  }
}

}  // namespace tensorfold::text
