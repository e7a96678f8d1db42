#include "families/rotary_fields.h"

#include <cmath>

namespace tensorfold::families {

std::vector<float> RotaryFields::frequencies() const {
  std::vector<float> values;
  for (int32_t d = 0; d < width / 2; ++d) values.push_back(static_cast<float>(std::pow(theta, -2.0 * d / width)));
  return values;
}

RotaryFields read_rotary(ConfigFields& fields, int32_t head_dim) {
  RotaryFields rotary;
  const double flat_theta = fields.number("rope_theta", 1.0, 1e12, 1e7);
  const double flat_factor = fields.number("partial_rotary_factor", 0.0, 1.0, 0.25);
  static const nlohmann::json none = nlohmann::json::object();
  const nlohmann::json* nested = fields.object("rope_parameters");
  ConfigFields rope(nested == nullptr ? none : *nested);
  rotary.theta = rope.number("rope_theta", 1.0, 1e12, flat_theta);
  const double factor = rope.number("partial_rotary_factor", 0.0, 1.0, flat_factor);
  rope.serve("rope_type", rope.text("rope_type", rope.text("type", "default")) == "default");
  for (const std::string& problem : rope.problems().all()) fields.problems().add("rope_parameters: {}", problem);
  if (const auto* scaling = fields.object("rope_scaling")) fields.serve("rope_scaling", scaling->empty());
  rotary.width = static_cast<int32_t>(head_dim * factor);
  if (rotary.width % 2 != 0) fields.problems().add("the rotary width {} is odd", rotary.width);
  return rotary;
}

}  // namespace tensorfold::families
