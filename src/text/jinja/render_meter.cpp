#include "text/jinja/render_meter.h"

namespace tensorfold::text::jinja {

thread_local RenderMeter* RenderMeter::current_ = nullptr;

void check_text_size(std::size_t bytes) {
  const std::size_t limit = RenderMeter::current() ? RenderMeter::current()->limits().text : RenderLimits{}.text;
  if (bytes > limit) throw TemplateFailure("the template makes a text that is too long");
}

}  // namespace tensorfold::text::jinja
