// From a chat request to prompt text: the checkpoint's own template over normalised messages.
#pragma once

#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/template.h"
#include "text/jinja/value.h"
#include "text/template_traits.h"
#include "text/text_piece.h"

namespace tensorfold::text {

/// What a template is rendered with. Values come from jinja::parse_json, which keeps the key order of tool schemas and
/// marks the strings as the request's.
struct ChatRequest {
  jinja::Value messages;            ///< a list of messages as the OpenAI dialect has them
  jinja::Value tools;               ///< a list, or None
  jinja::Value documents;           ///< a list, or None
  jinja::Value template_arguments;  ///< a dict of further variables (enable_thinking, reasoning_effort, ...), or None
  bool add_generation_prompt = true;
  std::function<std::tm()> now;  ///< the clock of strftime_now; local time if empty
};

/// Special tokens by the names that templates use: {"bos_token", "<s>"}, ...
using SpecialTokenTexts = std::vector<std::pair<std::string, std::string>>;

class ChatTemplate {
 public:
  /// `tool_use_source` is rendered instead when tools are offered. Throws Error for a template that does not parse.
  explicit ChatTemplate(std::string source, SpecialTokenTexts special_tokens = {},
                        std::optional<std::string> tool_use_source = std::nullopt);

  /// Reads chat_template.jinja, else chat_template in tokenizer_config.json (one text, or named ones), and the special
  /// tokens of tokenizer_config.json. Throws Error(unsupported) where there is no template.
  static ChatTemplate load(const std::filesystem::path& directory);

  /// The prompt. Text of the template is trusted, text of the request is not; the pieces joined are the rendering.
  /// Where thinking is off and the template still ends by opening a think block, the block is closed.
  /// Throws Error(invalid_request): raise_exception's own message, or what went wrong and where.
  [[nodiscard]] std::vector<TextPiece> render(const ChatRequest& request) const;

  [[nodiscard]] const TemplateTraits& traits() const { return traits_; }
  [[nodiscard]] const std::string& source() const { return source_; }

 private:
  [[nodiscard]] const jinja::Template& template_for(const ChatRequest& request) const;
  [[nodiscard]] jinja::MarkedText render_text(const ChatRequest& request) const;
  std::string source_;
  jinja::Template template_;
  std::optional<jinja::Template> tool_use_template_;
  SpecialTokenTexts special_tokens_;
  TemplateTraits traits_;
};

/// The pieces' texts joined.
std::string joined_text(const std::vector<TextPiece>& pieces);

}  // namespace tensorfold::text
