// From a conversation to the prompt's token ids: the only place that knows the chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/json_body.h"
#include "text/chat_template.h"
#include "text/reply_parser.h"
#include "text/tokenizer.h"

namespace tensorfold::server {

/// How a conversation is to be rendered.
struct RenderSettings {
  bool thinking = true;
  std::string effort;               ///< empty: the template's own
  Json arguments = Json::object();  ///< further template variables (chat_template_kwargs)
  bool generation_prompt = true;
};

struct Prompt {
  std::vector<int32_t> ids;
  std::vector<int32_t> snapshot_hints;  ///< where a later prompt is likely to part from this one, ascending
  int32_t system_tokens = 0;            ///< the first of them when it ends the system block, which others share
  bool in_reasoning = false;            ///< the prompt ends inside a think block
};

class PromptRenderer {
 public:
  /// `directory`: the model's. Throws Error when the template does not parse (line and column); a model without a
  /// template renders nothing but raw prompts.
  PromptRenderer(const text::Tokenizer& tokenizer, const std::string& directory, const std::string& model_type = {});

  [[nodiscard]] bool has_template() const { return template_ != nullptr; }
  /// How replies to its prompts mark reasoning.
  [[nodiscard]] text::ReplyFormat reply_format() const { return format_; }
  /// How the template writes a tool call, or null when that is not known.
  [[nodiscard]] const text::CallFormat* call_format() const;
  /// Renders checked messages. Throws ApiError (400) with the template's own words when it refuses.
  [[nodiscard]] Prompt render(const Json& messages, const Json& tools, const RenderSettings& settings) const;
  /// The level a template is told for the one asked: itself when the template names it, else the nearest named level,
  /// ties upward. Throws ApiError (400) for an unknown word.
  [[nodiscard]] std::string effort_for_template(const std::string& asked) const;

 private:
  const text::Tokenizer& tokenizer_;
  std::unique_ptr<text::ChatTemplate> template_;
  text::ReplyFormat format_;
};

}  // namespace tensorfold::server
