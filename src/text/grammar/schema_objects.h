// Objects and arrays of a JSON Schema as grammars.
#pragma once

#include <cstdint>
#include <string>

#include "text/grammar/expression.h"
#include "text/grammar/json_rules.h"
#include "text/grammar/schema_merge.h"

namespace tensorfold::text::grammar {

/// What they need of the compiler.
class SchemaContext {
 public:
  virtual ~SchemaContext() = default;
  virtual JsonRules& json() = 0;
  virtual RuleSet& rules() = 0;
  /// Values of a schema.
  virtual Expr schema(const Json& schema, const std::string& path) = 0;
  /// Strings of a schema, read as one of type string.
  virtual Expr string(const Json& schema, const std::string& path) = 0;
  /// Strings that match a pattern somewhere.
  virtual Expr pattern(const std::string& pattern, uint32_t least, uint32_t most, const std::string& path) = 0;
};

/// `schema` is flat (see flattened()). Error invalid_request with the path.
Expr object_expression(const Json& schema, const std::string& path, SchemaContext& context);
Expr array_expression(const Json& schema, const std::string& path, SchemaContext& context);

}  // namespace tensorfold::text::grammar
