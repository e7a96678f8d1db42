#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "text/unicode_tables.h"

namespace tensorfold::text {
namespace {

namespace tables = unicode_tables;
constexpr std::size_t code_points = 0x110000;

// One byte a code point: the runs of the generated tables spread out once, so that a look-up is one load.
std::vector<std::uint8_t> spread(const std::uint32_t* runs, std::size_t count) {
  std::vector<std::uint8_t> result(code_points);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = runs[i] >> 8;
    const std::size_t end = i + 1 < count ? runs[i + 1] >> 8 : code_points;
    std::fill(result.begin() + static_cast<std::ptrdiff_t>(begin), result.begin() + static_cast<std::ptrdiff_t>(end),
              static_cast<std::uint8_t>(runs[i] & 0xFFU));
  }
  return result;
}

const std::uint8_t* categories() {
  static const std::vector<std::uint8_t> table = spread(tables::category_runs, tables::category_runs_size);
  return table.data();
}

bool in_unicode_9(char32_t code_point) {
  static const std::vector<std::uint8_t> is_new = spread(tables::new_since_9_runs, tables::new_since_9_runs_size);
  return code_point < code_points && is_new[code_point] == 0;
}

// Ranges around the punctuation that Unicode 9.0 added to 8.0.
constexpr std::array<std::pair<char32_t, char32_t>, 6> new_punctuation = {{{0x2E43, 0x2E44},
                                                                           {0x1144B, 0x1145D},
                                                                           {0x11660, 0x1166C},
                                                                           {0x11C41, 0x11C45},
                                                                           {0x11C70, 0x11C71},
                                                                           {0x1E95E, 0x1E95F}}};

bool between(Category value, Category low, Category high) { return value >= low && value <= high; }

std::size_t utf8_length(char32_t code_point) {
  return code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
}

std::unordered_map<char32_t, char32_t> make_stand_ins() {
  const std::vector<std::uint8_t> changed = spread(tables::changed_since_14_runs, tables::changed_since_14_runs_size);
  // The first unchanged code point of each category and length; ASCII never changes and is left out.
  std::array<std::array<char32_t, 5>, 30> first{};
  for (char32_t point = 0x80; point < code_points; ++point) {
    if (changed[point] != 0 || point == 0x180E) continue;
    char32_t& slot = first[static_cast<std::size_t>(category(point))][utf8_length(point)];
    if (slot == 0) slot = point;
  }
  std::unordered_map<char32_t, char32_t> result;
  for (char32_t point = 0x80; point < code_points; ++point) {
    if (changed[point] == 0 && point != 0x180E) continue;
    const bool ideograph = point >= 0x2A6D7 && point < 0x33480 && category(point) == Category::Lo;
    const char32_t stand_in =
        ideograph ? 0x20000 : first[static_cast<std::size_t>(category(point))][utf8_length(point)];
    if (stand_in != 0) result.emplace(point, stand_in);
  }
  return result;
}

const std::unordered_map<char32_t, char32_t>& stand_ins() {
  static const std::unordered_map<char32_t, char32_t> map = make_stand_ins();
  return map;
}

const std::vector<std::uint8_t>& stand_in_marks() {
  static const std::vector<std::uint8_t> marks = [] {
    std::vector<std::uint8_t> result(code_points);
    for (const auto& [point, stand_in] : stand_ins()) result[point] = 1;
    return result;
  }();
  return marks;
}

}  // namespace

Category category(char32_t code_point) {
  static const std::uint8_t* const table = categories();
  return code_point < code_points ? static_cast<Category>(table[code_point]) : Category::Cn;
}

std::uint8_t combining_class(char32_t code_point) {
  static const std::vector<std::uint8_t> table = spread(tables::combining_runs, tables::combining_runs_size);
  return code_point < code_points ? table[code_point] : std::uint8_t{0};
}

bool is_letter(char32_t code_point) { return between(category(code_point), Category::Lu, Category::Lo); }
bool is_accent(char32_t code_point) {
  return between(category(code_point), Category::Mn, Category::Me) && in_unicode_9(code_point);
}
bool is_number(char32_t code_point) { return between(category(code_point), Category::Nd, Category::No); }

bool is_punctuation(char32_t code_point) {
  if (code_point < 0x80) {
    const bool alphanumeric = (code_point >= '0' && code_point <= '9') || (code_point >= 'A' && code_point <= 'Z') ||
                              (code_point >= 'a' && code_point <= 'z');
    return code_point > 0x20 && code_point < 0x7F && !alphanumeric;
  }
  return between(category(code_point), Category::Pc, Category::Po) && in_unicode_9(code_point) &&
         !std::any_of(new_punctuation.begin(), new_punctuation.end(),
                      [&](const auto& range) { return code_point >= range.first && code_point <= range.second; });
}

bool is_whitespace(char32_t code_point) {
  return (code_point >= 0x09 && code_point <= 0x0D) || code_point == 0x85 ||
         between(category(code_point), Category::Zs, Category::Zp);
}

bool is_word(char32_t code_point) {
  const Category value = category(code_point);
  if (between(value, Category::Lu, Category::Nl) || value == Category::Pc) return true;
  // Alphabetic beyond the categories: circled and squared Latin letters. Then the joiners.
  return (code_point >= 0x24B6 && code_point <= 0x24E9) || (code_point >= 0x1F130 && code_point <= 0x1F149) ||
         (code_point >= 0x1F150 && code_point <= 0x1F169) || (code_point >= 0x1F170 && code_point <= 0x1F189) ||
         code_point == 0x200C || code_point == 0x200D;
}

std::string lower_case(std::string_view text) {
  const std::span<const tables::LowerCase> all(tables::lower_cases, tables::lower_cases_size);
  std::string result;
  result.reserve(text.size());
  for (std::size_t position = 0; position < text.size();) {
    const char32_t point = next_code_point(text, position);
    const auto found =
        std::lower_bound(all.begin(), all.end(), point,
                         [](const tables::LowerCase& entry, char32_t value) { return entry.code_point < value; });
    if (found == all.end() || found->code_point != point) {
      append_utf8(result, point);
      continue;
    }
    append_utf8(result, found->first);
    if (found->second != 0) append_utf8(result, found->second);
  }
  return result;
}

char32_t regex_stand_in(char32_t code_point) {
  const auto found = stand_ins().find(code_point);
  return found == stand_ins().end() ? code_point : found->second;
}

bool needs_regex_stand_ins(std::string_view text) {
  static const std::vector<std::uint8_t>& marks = stand_in_marks();
  for (std::size_t position = 0; position < text.size();) {
    if (static_cast<unsigned char>(text[position]) < 0x80) {
      ++position;
    } else if (marks[next_code_point(text, position)] != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace tensorfold::text
