// Stop strings: text up to the first one, holding back only what may begin one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tensorfold::text {

/// Watches text that arrives in pieces. The stop string that is complete first ends it (the longest of those that end
/// at the same byte); what was given out does not depend on how the text was cut.
class StopStrings {
 public:
  /// Empty stop strings are ignored.
  explicit StopStrings(std::vector<std::string> stops);

  /// The text that is certain now. After a stop, always empty.
  std::string feed(std::string_view piece);
  /// What was held back, once the text has ended without a stop.
  std::string finish();

  [[nodiscard]] bool stopped() const { return stopped_; }
  /// The stop string that ended the text; empty if none did.
  [[nodiscard]] const std::string& found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::string found_;
  bool stopped_ = false;
};

}  // namespace tensorfold::text
