// Regular expressions of tokenizer.json: written for Oniguruma (Ruby syntax), run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold::text {

/// A stretch of bytes and whether the pattern matched it.
struct RegexStretch {
  std::size_t begin;
  std::size_t end;
  bool is_match;
};

/// A compiled pattern. Immutable after construction and safe to use from several threads at once.
/// Character classes follow Unicode 16.0 whatever PCRE2 was built with: the subject must have passed through
/// regex_subject() below.
class Regex {
 public:
  /// Error unsupported if the pattern uses Oniguruma features that PCRE2 reads differently, or does not compile.
  explicit Regex(std::string_view pattern);

  /// Cuts `subject` (valid UTF-8) into matches and what lies between them, in order, covering every byte. Empty matches
  /// appear as empty stretches, as Hugging Face's library reports them. Time is linear for patterns without nested
  /// repeats; a pattern that backtracks without end gives Error unsupported.
  void cut(std::string_view subject, std::vector<RegexStretch>& out) const;

  /// A pattern that matches `text` itself.
  static std::string escape(std::string_view text);

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
  std::string pattern_;
};

/// The text with the characters whose class PCRE2 does not know (newer than Unicode 14.0) replaced by known ones of the
/// same class and length, or nothing where no character needs it.
std::optional<std::string> regex_subject(std::string_view text);

}  // namespace tensorfold::text
