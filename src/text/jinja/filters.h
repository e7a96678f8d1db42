// The filters and tests of the template language, by name.
#pragma once

#include <functional>
#include <map>
#include <string_view>

#include "text/jinja/evaluator.h"

namespace tensorfold::text::jinja {

using Filter = std::function<Value(Evaluator&, const Value& input, const Arguments&)>;
using FilterTable = std::map<std::string_view, Filter>;

/// The filter, or nullptr.
const Filter* find_filter(std::string_view name);
bool has_test(std::string_view name);

void add_text_filters(FilterTable& table);
void add_number_filters(FilterTable& table);
void add_sequence_filters(FilterTable& table);
void add_selection_filters(FilterTable& table);

/// value.attribute for a dotted path such as "function.name" or "0.text"; `standard` replaces what is undefined.
Value get_path(const Value& value, const Value& path, const Value* standard = nullptr);

/// What sort, unique, min and max compare: texts in lower case unless `case_sensitive`.
Value comparison_key(const Value& value, bool case_sensitive);

}  // namespace tensorfold::text::jinja
