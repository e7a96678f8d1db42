// Python's two ways of formatting text: "%s" % x and "{}".format(x).
#pragma once

#include "text/jinja/value.h"

namespace tensorfold::text::jinja {

/// format % arguments, where arguments is a tuple, a dict or one value.
MarkedText percent_format(const MarkedText& format, const Value& arguments);
/// format.format(arguments).
MarkedText brace_format(const MarkedText& format, const Arguments& arguments);

}  // namespace tensorfold::text::jinja
