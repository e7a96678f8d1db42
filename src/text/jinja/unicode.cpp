#include "text/jinja/unicode.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "base/utf8.h"

namespace tensorfold::text::jinja {

namespace {

/// Code points first, first + step, ... last map to themselves plus delta.
struct CaseRun {
  std::uint32_t first;
  std::uint32_t last;
  std::uint32_t step;
  std::int32_t delta;
};

/// A code point that maps to several letters; unused places are 0.
struct CaseSpecial {
  std::uint32_t code_point;
  std::uint32_t letters[3];
};

#include "text/jinja/case_tables.inc"

struct CaseTable {
  std::span<const CaseRun> runs;
  std::span<const CaseSpecial> specials;
};

CaseTable table_of(CaseMapping mapping) {
  switch (mapping) {
    case CaseMapping::upper:
      return {upper_runs, upper_specials};
    case CaseMapping::lower:
      return {lower_runs, lower_specials};
    case CaseMapping::title:
      return {title_runs, title_specials};
    case CaseMapping::fold:
      return {fold_runs, fold_specials};
  }
  return {};
}

const CaseSpecial* find_special(std::span<const CaseSpecial> specials, std::uint32_t code_point) {
  const auto found = std::ranges::lower_bound(specials, code_point, {}, &CaseSpecial::code_point);
  return found != specials.end() && found->code_point == code_point ? &*found : nullptr;
}

std::uint32_t map_one(std::span<const CaseRun> runs, std::uint32_t code_point) {
  const auto after = std::ranges::upper_bound(runs, code_point, {}, &CaseRun::first);
  // Runs with a step of 2 interleave, so the run before the nearest one may hold the code point, too.
  for (auto run = after; run != runs.begin() && std::distance(run, after) < 2;) {
    --run;
    if (code_point <= run->last && (code_point - run->first) % run->step == 0) {
      return static_cast<std::uint32_t>(static_cast<std::int64_t>(code_point) + run->delta);
    }
  }
  return code_point;
}

/// A PCRE2 pattern for one code point.
class CodePointPattern {
 public:
  explicit CodePointPattern(const char* pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr));
    check(code_ != nullptr, "a character class pattern does not compile");
  }
  [[nodiscard]] bool matches(char32_t code_point) const {
    std::string bytes;
    append_utf8(bytes, code_point);
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(pcre2_match_data_create(1, nullptr),
                                                                                    &pcre2_match_data_free);
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(bytes.data()), bytes.size(), 0, PCRE2_NO_UTF_CHECK,
                       match.get(), nullptr) >= 0;
  }

 private:
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code_{nullptr, &pcre2_code_free};
};

}  // namespace

void append_mapped(TextBuilder& out, char32_t code_point, CaseMapping mapping, bool untrusted) {
  const CaseTable table = table_of(mapping);
  if (const CaseSpecial* special = find_special(table.specials, code_point)) {
    for (const std::uint32_t letter : special->letters) {
      if (letter != 0) out.append_code_point(letter, untrusted);
    }
    return;
  }
  out.append_code_point(map_one(table.runs, code_point), untrusted);
}

MarkedText map_case(const MarkedText& text, CaseMapping mapping) {
  TextBuilder out;
  for (std::size_t at = 0; at < text.size();) {
    const bool untrusted = text.untrusted_at(at);
    append_mapped(out, next_code_point(text.view(), at), mapping, untrusted);
  }
  return out.finish(text.is_markup());
}

bool is_space(char32_t code_point) {
  return (code_point >= 0x09 && code_point <= 0x0D) || (code_point >= 0x1C && code_point <= 0x20) ||
         code_point == 0x85 || code_point == 0xA0 || code_point == 0x1680 ||
         (code_point >= 0x2000 && code_point <= 0x200A) || code_point == 0x2028 || code_point == 0x2029 ||
         code_point == 0x202F || code_point == 0x205F || code_point == 0x3000;
}

bool is_printable(char32_t code_point) {
  if (code_point < 0x7F) return code_point >= 0x20;
  static const CodePointPattern hidden("[\\p{C}\\p{Z}]");
  return !hidden.matches(code_point);
}

bool is_cased(char32_t code_point) {
  return is_in_class(code_point, CharacterClass::lower) || is_in_class(code_point, CharacterClass::upper_or_title);
}

bool is_in_class(char32_t code_point, CharacterClass character_class) {
  static const CodePointPattern alphabetic("\\p{L}");
  static const CodePointPattern decimal("\\p{Nd}");
  static const CodePointPattern digit("[\\p{Nd}\\x{b2}\\x{b3}\\x{b9}\\x{2070}\\x{2074}-\\x{2079}\\x{2080}-\\x{2089}]");
  static const CodePointPattern numeric("\\p{N}");
  static const CodePointPattern alphanumeric("[\\p{L}\\p{N}]");
  static const CodePointPattern lower("\\p{Ll}");
  static const CodePointPattern upper_or_title("[\\p{Lu}\\p{Lt}]");
  switch (character_class) {
    case CharacterClass::alphabetic:
      return alphabetic.matches(code_point);
    case CharacterClass::decimal:
      return decimal.matches(code_point);
    case CharacterClass::digit:
      return digit.matches(code_point);
    case CharacterClass::numeric:
      return numeric.matches(code_point);
    case CharacterClass::alphanumeric:
      return alphanumeric.matches(code_point);
    case CharacterClass::lower:
      return lower.matches(code_point);
    case CharacterClass::upper_or_title:
      return upper_or_title.matches(code_point);
  }
  return false;
}

}  // namespace tensorfold::text::jinja
