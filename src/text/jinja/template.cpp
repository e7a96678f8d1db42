#include "text/jinja/template.h"

#include "base/error.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace tensorfold::text::jinja {

namespace {

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return parts;
}

/// The text without the meter's charge, so that it may outlive the rendering.
MarkedText run(const Body& body, const Dict& variables, const RenderOptions& options) {
  Evaluator evaluator(variables, options.now ? options.now : local_time, options.limits);
  try {
    return evaluator.run(body);
  } catch (const TemplateFailure& failure) {
    fail(ErrorKind::invalid_request, "chat template, line {}: {}", evaluator.line(), failure.what());
  } catch (const TemplateRefusal& refusal) {
    throw Error(ErrorKind::invalid_request, refusal.what());
  }
}

}  // namespace

Template::Template(std::string_view source) : body_(std::make_shared<const Body>(parse(source))) {}

MarkedText Template::render(const Value& variables, const RenderOptions& options) const {
  check(variables.is_dict(), "a template is rendered with a dict of variables");
  std::string bytes;
  std::vector<ByteRange> untrusted;
  {
    RenderMeter meter(options.limits);
    const MarkedText text = run(*body_, variables.dict(), options);
    bytes = text.str();
    untrusted = text.untrusted();
  }
  TextBuilder out;
  std::size_t at = 0;
  for (const ByteRange& range : untrusted) {
    out.append(std::string_view(bytes).substr(at, range.begin - at));
    out.append(std::string_view(bytes).substr(range.begin, range.end - range.begin), true);
    at = range.end;
  }
  out.append(std::string_view(bytes).substr(at));
  return out.finish();
}

}  // namespace tensorfold::text::jinja
