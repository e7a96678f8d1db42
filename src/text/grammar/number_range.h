// Numbers between bounds, as grammars over their digits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "text/grammar/expression.h"

namespace tensorfold::text::grammar {

/// A bound as it is written in a schema.
struct NumberBound {
  std::string number;  ///< JSON's spelling
  bool inclusive = true;
};

/// Integers of at most 18 digits between the bounds. Error invalid_request for bounds beyond that.
Expr integers_between(const std::optional<NumberBound>& least, const std::optional<NumberBound>& most);

/// Decimal numbers between the bounds, without exponents, of so few digits that a double keeps their order. Error
/// invalid_request for bounds of more than 15 digits.
Expr numbers_between(const std::optional<NumberBound>& least, const std::optional<NumberBound>& most);

}  // namespace tensorfold::text::grammar
