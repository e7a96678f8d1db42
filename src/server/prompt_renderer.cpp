#include "server/prompt_renderer.h"

#include <algorithm>
#include <span>
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

/// The prompt's length in tokens up to the text of the last message that came from the request. A later turn that
/// changes only this message shares everything before.
std::vector<int32_t> last_turn_start(const text::Tokenizer& tokenizer, const std::vector<TextPiece>& pieces,
                                     const std::vector<int32_t>& ids) {
  size_t last = pieces.size();
  while (last > 0 && pieces[last - 1].trusted) --last;
  if (last <= 1) return {};
  const std::vector<int32_t> before = tokenizer.encode(std::span(pieces).first(last - 1));
  const auto parted = std::mismatch(before.begin(), before.end(), ids.begin(), ids.end());
  // The token at the border may depend on what follows it.
  const auto common = static_cast<int32_t>(parted.first - before.begin()) - 1;
  return common > 0 ? std::vector<int32_t>{common} : std::vector<int32_t>{};
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
    throw bad_request("this model has no chat template; use /v1/completions", "messages");
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
  prompt.snapshot_hints = last_turn_start(tokenizer_, pieces, prompt.ids);
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
