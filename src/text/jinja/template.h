// A parsed template that renders values: Jinja2 as Hugging Face sets it up for chat templates (trim_blocks and
// lstrip_blocks, break and continue, generation blocks, tojson without ASCII or HTML escaping, raise_exception,
// strftime_now, and the immutable sandbox).
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string_view>

#include "text/jinja/render_meter.h"
#include "text/jinja/syntax_tree.h"
#include "text/jinja/value.h"

namespace tensorfold::text::jinja {

struct RenderOptions {
  std::function<std::tm()> now;  ///< the clock of strftime_now; local time if empty
  RenderLimits limits;
};

class Template {
 public:
  /// Parses; throws Error(invalid_request) that names line and column.
  explicit Template(std::string_view source);

  /// Renders with the names in `variables`. May be called from several threads at once.
  /// Throws Error(invalid_request): raise_exception's message as it is, other failures with the line.
  [[nodiscard]] MarkedText render(const Value& variables, const RenderOptions& options = {}) const;

 private:
  std::shared_ptr<const Body> body_;
};

}  // namespace tensorfold::text::jinja
