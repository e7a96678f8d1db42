#include "server/prompt_renderer.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "server/api_error.h"
#include "text/jinja/json_value.h"

namespace tensorfold::server {
namespace {

using text::TextPiece;

/// The template's words after the last text that came from the request: it decides where the reply begins.
std::string_view closing_words(const std::vector<TextPiece>& pieces) {
  if (pieces.empty() || !pieces.back().trusted) return {};
  return pieces.back().text;
}

/// The prompt's length in tokens up to `pieces[end]`, less the token at the border, which may depend on what follows
/// it.
int32_t tokens_before(const text::Tokenizer& tokenizer, const std::vector<TextPiece>& pieces, size_t end,
                      const std::vector<int32_t>& ids) {
  const std::vector<int32_t> before = tokenizer.encode(std::span(pieces).first(end));
  const auto parted = std::mismatch(before.begin(), before.end(), ids.begin(), ids.end());
  return std::max(0, static_cast<int32_t>(parted.first - before.begin()) - 1);
}

/// The text of the first message that is no system message.
std::string first_words(const Json& messages) {
  for (const Json& message : messages) {
    const std::string role = message.value("role", "");
    if (role == "system" || role == "developer") continue;
    const auto content = message.find("content");
    if (content == message.end()) return {};
    if (content->is_string()) return content->get<std::string>();
    if (content->is_array() && !content->empty() && content->front().is_object()) {
      const auto text = content->front().find("text");
      if (text != content->front().end() && text->is_string()) return text->get<std::string>();
    }
    return {};
  }
  return {};
}

/// Where a later prompt is likely to part from this one: behind the system block (system text, tools), and before the
/// text of the last message that came from the request.
void set_hints(const text::Tokenizer& tokenizer, const std::vector<TextPiece>& pieces, const Json& messages,
               Prompt& prompt) {
  size_t last = pieces.size();
  while (last > 0 && pieces[last - 1].trusted) --last;
  if (last <= 1) return;
  const std::string words = first_words(messages);
  const auto first = std::find_if(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(last),
                                  [&](const TextPiece& piece) { return !piece.trusted && piece.text == words; });
  const auto system_end = static_cast<size_t>(first - pieces.begin());
  // One piece before it is the template's own opening of the message: no block.
  if (!words.empty() && system_end > 1 && system_end < last) {
    prompt.system_tokens = tokens_before(tokenizer, pieces, system_end, prompt.ids);
    if (prompt.system_tokens > 0) prompt.snapshot_hints.push_back(prompt.system_tokens);
    if (system_end + 1 == last) return;
  }
  const int32_t turn = tokens_before(tokenizer, pieces, last - 1, prompt.ids);
  if (turn > prompt.system_tokens) prompt.snapshot_hints.push_back(turn);
}

}  // namespace

PromptRenderer::PromptRenderer(const text::Tokenizer& tokenizer, const std::string& directory,
                               const std::string& model_type)
    : tokenizer_(tokenizer) {
  try {
    template_ = std::make_unique<text::ChatTemplate>(text::ChatTemplate::load(directory));
    format_ = text::detect_reply_format(template_->source(), model_type);
  } catch (const Error& failure) {
    if (failure.kind() != ErrorKind::unsupported) throw;  // no template at all: raw prompts only
  }
}

const text::CallFormat* PromptRenderer::call_format() const {
  if (!template_ || !template_->traits().call_format) return nullptr;
  return &*template_->traits().call_format;
}

Prompt PromptRenderer::render(const Json& messages, const Json& tools, const RenderSettings& settings) const {
  if (!template_) {
    throw bad_request("this model has no chat template: use /v1/completions, or generate --raw", "messages");
  }
  Json arguments = settings.arguments;
  arguments["enable_thinking"] = settings.thinking;
  arguments["thinking_mode"] = settings.thinking ? "thinking" : "chat";
  if (settings.thinking && !settings.effort.empty()) arguments["reasoning_effort"] = settings.effort;
  text::ChatRequest request;
  request.messages = text::jinja::from_json(messages);
  if (!tools.empty()) request.tools = text::jinja::from_json(tools);
  request.template_arguments = text::jinja::from_json(arguments);
  request.add_generation_prompt = settings.generation_prompt;
  std::vector<TextPiece> pieces;
  try {
    pieces = template_->render(request);
  } catch (const Error& failure) {
    if (failure.kind() != ErrorKind::invalid_request) throw;
    throw bad_request(failure.what(), "messages");
  }
  Prompt prompt;
  prompt.ids = tokenizer_.encode(pieces);
  if (prompt.ids.empty()) throw bad_request("the chat template rendered nothing", "messages");
  prompt.in_reasoning = text::prompt_opens_reasoning(format_, closing_words(pieces));
  set_hints(tokenizer_, pieces, messages, prompt);
  return prompt;
}

std::string PromptRenderer::effort_for_template(const std::string& asked) const {
  if (asked == "none") return asked;
  try {
    return text::effort_for_template(template_ ? template_->traits() : text::TemplateTraits{}, asked);
  } catch (const Error& failure) {
    throw bad_request(failure.what(), "reasoning_effort");
  }
}

}  // namespace tensorfold::server
