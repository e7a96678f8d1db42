#include "text/chat_template.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/presence.h"
#include "base/utf8.h"
#include "text/chat_messages.h"

namespace tensorfold::text {

namespace {

using jinja::MarkedText;
using jinja::Value;
using nlohmann::json;

constexpr uint64_t largest_template = 4 << 20;  // real ones have up to 40 kB
constexpr uint64_t largest_config = 64 << 20;

std::optional<std::string> read_template(const std::filesystem::path& path) {
  if (!has_file(path)) return std::nullopt;
  std::string text = read_text_file(path, largest_template);
  if (!is_valid_utf8(text)) fail(ErrorKind::corrupt_file, "{} is not valid UTF-8", path.string());
  return text;
}

json read_json(const std::filesystem::path& path) {
  if (!has_file(path)) return json::object();
  json parsed = json::parse(read_text_file(path, largest_config), nullptr, false);
  if (!parsed.is_object()) fail(ErrorKind::corrupt_file, "{} is not a JSON object", path.string());
  return parsed;
}

/// A special token as transformers writes it: text, or an object with the text as its content.
std::optional<std::string> token_text(const json& config, const std::string& name) {
  const auto found = config.find(name);
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && found->at("content").is_string()) {
    return found->at("content").get<std::string>();
  }
  return std::nullopt;
}

SpecialTokenTexts read_special_tokens(const json& config, const json& special_tokens_map) {
  SpecialTokenTexts tokens;
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    auto text = config.contains(name) ? token_text(config, name) : token_text(special_tokens_map, name);
    if (text) tokens.emplace_back(name, *std::move(text));
  }
  return tokens;
}

/// Named templates: a list of {name, template}, or an object.
std::optional<std::string> named_template(const json& templates, const std::string& name) {
  if (templates.is_object()) {
    const auto found = templates.find(name);
    return found != templates.end() && found->is_string() ? std::optional(found->get<std::string>()) : std::nullopt;
  }
  for (const json& entry : templates) {
    if (!entry.is_object() || entry.value("name", json()) != name) continue;
    const auto found = entry.find("template");
    if (found != entry.end() && found->is_string()) return found->get<std::string>();
  }
  return std::nullopt;
}

Value make_variables(const ChatRequest& request, const SpecialTokenTexts& special_tokens, Value messages) {
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [name, text] : special_tokens) entries.emplace_back(Value(name), Value(text));
  entries.emplace_back(Value("messages"), std::move(messages));
  entries.emplace_back(Value("tools"), request.tools);
  entries.emplace_back(Value("documents"), request.documents);
  entries.emplace_back(Value("add_generation_prompt"), Value(request.add_generation_prompt));
  if (request.template_arguments.is_dict()) {
    for (const auto& entry : request.template_arguments.dict().entries()) entries.push_back(entry);
  }
  return Value::dict(std::move(entries));
}

/// Bytes of a request's texts and, roughly, of what holds them.
std::size_t request_bytes(const Value& value) {
  std::size_t bytes = 16;
  if (value.is_string()) bytes += value.text().size();
  if (value.is_sequence()) {
    for (const Value& item : value.sequence().items) bytes += request_bytes(item);
  }
  if (value.is_dict()) {
    for (const auto& [key, item] : value.dict().entries()) bytes += request_bytes(key) + request_bytes(item);
  }
  return bytes;
}

/// What a rendering may use, by its request's bytes: real templates take a few steps for each, and a hostile one is
/// refused within about a second.
jinja::RenderLimits render_limits(std::size_t bytes) {
  const jinja::RenderLimits most;
  jinja::RenderLimits limits;
  limits.steps = std::min<std::uint64_t>(most.steps, 3'000'000 + 50 * bytes);
  limits.text = std::min<std::size_t>(most.text, (8U << 20) + 8 * bytes);
  limits.memory = std::min<std::size_t>(most.memory, (64U << 20) + 64 * bytes);
  return limits;
}

bool has_tools(const ChatRequest& request) {
  return request.tools.is_list() && !request.tools.sequence().items.empty();
}

bool thinking_is_off(const ChatRequest& request) {
  if (!request.template_arguments.is_dict()) return false;
  const Value* thinks = request.template_arguments.dict().find(std::string_view("enable_thinking"));
  return thinks != nullptr && thinks->is_bool() && !thinks->boolean();
}

std::vector<TextPiece> split_by_origin(const MarkedText& text) {
  std::vector<TextPiece> pieces;
  std::size_t at = 0;
  const auto add = [&](std::size_t end, bool trusted) {
    if (end > at) pieces.push_back({std::string(text.view().substr(at, end - at)), trusted});
    at = end;
  };
  for (const jinja::ByteRange& range : text.untrusted()) {
    add(range.begin, true);
    add(range.end, false);
  }
  add(text.size(), true);
  return pieces;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, SpecialTokenTexts special_tokens,
                           std::optional<std::string> tool_use_source)
    : source_(std::move(source)), template_(source_), special_tokens_(std::move(special_tokens)) {
  if (tool_use_source) tool_use_template_.emplace(*tool_use_source);
  const auto trial = [&](const Value& messages, const Value& tools) {
    ChatRequest request;
    request.add_generation_prompt = false;
    request.tools = tools;
    jinja::RenderLimits limits = render_limits(0);
    limits.steps /= 10;  // several trials, all of them short
    return template_for(request).render(make_variables(request, special_tokens_, messages), {{}, limits}).str();
  };
  traits_ = find_template_traits(tool_use_source ? source_ + *tool_use_source : source_, trial);
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& directory) {
  const json config = read_json(directory / "tokenizer_config.json");
  SpecialTokenTexts tokens = read_special_tokens(config, read_json(directory / "special_tokens_map.json"));
  if (auto source = read_template(directory / "chat_template.jinja"))
    return ChatTemplate(*std::move(source), std::move(tokens));
  const auto found = config.find("chat_template");
  if (found != config.end() && found->is_string()) return ChatTemplate(found->get<std::string>(), std::move(tokens));
  if (found != config.end() && found->is_structured()) {
    auto standard = named_template(*found, "default");
    auto tool_use = named_template(*found, "tool_use");
    if (standard) return ChatTemplate(*std::move(standard), std::move(tokens), std::move(tool_use));
    if (tool_use) return ChatTemplate(*std::move(tool_use), std::move(tokens));
  }
  fail(ErrorKind::unsupported, "{} has no chat template", directory.string());
}

MarkedText ChatTemplate::render_text(const ChatRequest& request) const {
  const Value variables = make_variables(request, special_tokens_, normalise_messages(request.messages, traits_));
  return template_for(request).render(variables, {request.now, render_limits(request_bytes(variables))});
}

const jinja::Template& ChatTemplate::template_for(const ChatRequest& request) const {
  return tool_use_template_ && has_tools(request) ? *tool_use_template_ : template_;
}

std::vector<TextPiece> ChatTemplate::render(const ChatRequest& request) const {
  const MarkedText text = render_text(request);
  std::vector<TextPiece> pieces = split_by_origin(text);
  if (pieces.empty()) fail(ErrorKind::invalid_request, "the chat template renders these messages as nothing");
  if (request.add_generation_prompt && thinking_is_off(request) && pieces.back().trusted &&
      pieces.back().text.ends_with("<think>")) {
    pieces.back().text += "</think>";
  }
  return pieces;
}

std::string joined_text(const std::vector<TextPiece>& pieces) {
  std::string text;
  for (const TextPiece& piece : pieces) text += piece.text;
  return text;
}

}  // namespace tensorfold::text
