#include "text/unicode_normalization.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "base/utf8.h"
#include "text/unicode.h"
#include "text/unicode_tables.h"

namespace tensorfold::text {
namespace {

namespace tables = unicode_tables;

// Hangul syllables are composed by arithmetic (The Unicode Standard, section 3.12).
constexpr char32_t syllable_base = 0xAC00, lead_base = 0x1100, vowel_base = 0x1161, trail_base = 0x11A7;
constexpr char32_t lead_count = 19, vowel_count = 21, trail_count = 28;
constexpr char32_t syllable_count = lead_count * vowel_count * trail_count;

bool is_hangul_syllable(char32_t point) { return point >= syllable_base && point < syllable_base + syllable_count; }

bool composes(NormalizationForm form) { return form == NormalizationForm::nfc || form == NormalizationForm::nfkc; }
bool is_compatible(NormalizationForm form) {
  return form == NormalizationForm::nfkc || form == NormalizationForm::nfkd;
}

struct Element {
  char32_t point;
  std::uint8_t combining;
};

std::span<const std::uint32_t> find_decomposition(const tables::Decomposition* all, std::size_t size, char32_t point) {
  const auto* const end = all + size;
  const auto* const found = std::lower_bound(
      all, end, point, [](const tables::Decomposition& entry, char32_t value) { return entry.code_point < value; });
  if (found == end || found->code_point != point) return {};
  return {tables::decomposition_pool + found->offset, found->length};
}

void decompose(NormalizationForm form, char32_t point, std::vector<Element>& out) {
  if (is_hangul_syllable(point)) {
    const char32_t index = point - syllable_base;
    out.push_back({lead_base + index / (vowel_count * trail_count), 0});
    out.push_back({vowel_base + index % (vowel_count * trail_count) / trail_count, 0});
    if (index % trail_count != 0) out.push_back({trail_base + index % trail_count, 0});
    return;
  }
  std::span<const std::uint32_t> parts;
  if (is_compatible(form)) {
    parts = find_decomposition(tables::compatibility_decompositions, tables::compatibility_decompositions_size, point);
  }
  if (parts.empty()) {
    parts = find_decomposition(tables::canonical_decompositions, tables::canonical_decompositions_size, point);
  }
  if (parts.empty()) out.push_back({point, combining_class(point)});
  for (const std::uint32_t part : parts) out.push_back({part, combining_class(part)});
}

// The composition of two code points, or 0.
char32_t compose_pair(char32_t first, char32_t second) {
  if (first >= lead_base && first < lead_base + lead_count && second >= vowel_base &&
      second < vowel_base + vowel_count) {
    return syllable_base + ((first - lead_base) * vowel_count + (second - vowel_base)) * trail_count;
  }
  if (is_hangul_syllable(first) && (first - syllable_base) % trail_count == 0 && second > trail_base &&
      second < trail_base + trail_count) {
    return first + (second - trail_base);
  }
  const auto* const end = tables::compositions + tables::compositions_size;
  const auto* const found = std::lower_bound(tables::compositions, end, std::pair(first, second),
                                             [](const tables::Composition& entry, std::pair<char32_t, char32_t> value) {
                                               return std::pair<char32_t, char32_t>(entry.first, entry.second) < value;
                                             });
  return found != end && found->first == first && found->second == second ? found->composed : 0;
}

// Canonical ordering: each run of marks sorted by combining class, equal classes in their order.
void reorder(std::vector<Element>& elements) {
  const auto is_starter = [](const Element& element) { return element.combining == 0; };
  for (auto begin = elements.begin(); begin != elements.end();) {
    begin = std::find_if_not(begin, elements.end(), is_starter);
    const auto end = std::find_if(begin, elements.end(), is_starter);
    std::stable_sort(begin, end, [](const Element& a, const Element& b) { return a.combining < b.combining; });
    begin = end;
  }
}

// Canonical composition in place (UAX 15, section 1.3): a mark joins the last starter unless a mark of an equal or
// higher class, or another starter, stands between.
void compose(std::vector<Element>& elements) {
  std::size_t kept = 0;
  std::size_t starter = SIZE_MAX;
  for (const Element element : elements) {
    if (starter != SIZE_MAX) {
      const bool adjacent = kept == starter + 1;
      if (adjacent || elements[kept - 1].combining < element.combining) {
        if (const char32_t composed = compose_pair(elements[starter].point, element.point); composed != 0) {
          elements[starter].point = composed;
          continue;
        }
      }
    }
    if (element.combining == 0) starter = kept;
    elements[kept++] = element;
  }
  elements.resize(kept);
}

// For each code point and form, one bit: the character stays as it is and nothing before it can reach past it.
std::vector<std::uint8_t> make_inert_bits() {
  std::vector<std::uint8_t> bits(0x110000, 0xFF);
  const auto clear = [&](char32_t point, std::initializer_list<NormalizationForm> forms) {
    for (const NormalizationForm form : forms) {
      bits[point] = static_cast<std::uint8_t>(bits[point] & ~(1U << static_cast<unsigned>(form)));
    }
  };
  using enum NormalizationForm;
  for (char32_t point = 0; point < bits.size(); ++point) {
    if (combining_class(point) != 0) clear(point, {nfc, nfd, nfkc, nfkd});
    if (is_hangul_syllable(point)) clear(point, {nfd, nfkd});
  }
  for (char32_t point = vowel_base; point < trail_base + trail_count; ++point) clear(point, {nfc, nfkc});
  std::vector<Element> elements;
  for (std::size_t i = 0; i < tables::canonical_decompositions_size; ++i) {
    const char32_t point = tables::canonical_decompositions[i].code_point;
    clear(point, {nfd, nfkd});
    elements.clear();
    decompose(nfc, point, elements);
    compose(elements);
    if (elements.size() != 1 || elements[0].point != point) clear(point, {nfc, nfkc});
  }
  for (std::size_t i = 0; i < tables::compatibility_decompositions_size; ++i) {
    clear(tables::compatibility_decompositions[i].code_point, {nfkc, nfkd});
  }
  for (std::size_t i = 0; i < tables::compositions_size; ++i) clear(tables::compositions[i].second, {nfc, nfkc});
  return bits;
}

// Splits text into stretches that need no work and stretches that do, from one inert character to the next.
class Normalizer {
 public:
  Normalizer(NormalizationForm form, std::string_view text) : form_(form), text_(text) {}

  // Position of the first stretch that needs work at or after `position`; the text's size if there is none.
  std::size_t find_work(std::size_t position) const {
    std::size_t last_start = position;
    while (position < text_.size()) {
      const std::size_t start = position;
      if (!inert(next_code_point(text_, position))) return last_start;
      last_start = start;
    }
    return text_.size();
  }

  // End of the stretch of work that begins at `position`: the next inert character after the first.
  std::size_t work_end(std::size_t position) const {
    next_code_point(text_, position);
    while (position < text_.size()) {
      const std::size_t start = position;
      if (inert(next_code_point(text_, position))) return start;
    }
    return position;
  }

  void append_work(std::size_t begin, std::size_t end, std::string& out) {
    elements_.clear();
    for (std::size_t position = begin; position < end;) decompose(form_, next_code_point(text_, position), elements_);
    reorder(elements_);
    if (composes(form_)) compose(elements_);
    for (const Element& element : elements_) append_utf8(out, element.point);
  }

 private:
  bool inert(char32_t point) const {
    static const std::vector<std::uint8_t> bits = make_inert_bits();
    return (bits[point] >> static_cast<unsigned>(form_) & 1U) != 0;
  }

  NormalizationForm form_;
  std::string_view text_;
  std::vector<Element> elements_;
};

}  // namespace

void normalize(NormalizationForm form, std::string& text, std::vector<std::uint8_t>* trust) {
  Normalizer normalizer(form, text);
  std::size_t position = normalizer.find_work(0);
  if (position == text.size()) return;
  std::string result(text, 0, position);
  std::vector<std::uint8_t> result_trust;
  if (trust != nullptr) result_trust.assign(trust->begin(), trust->begin() + static_cast<std::ptrdiff_t>(position));
  while (position < text.size()) {
    const std::size_t end = normalizer.work_end(position);
    normalizer.append_work(position, end, result);
    const std::size_t next = normalizer.find_work(end);
    if (trust != nullptr) {
      const auto at = [&](std::size_t offset) { return trust->begin() + static_cast<std::ptrdiff_t>(offset); };
      const bool all = std::all_of(at(position), at(end), [](std::uint8_t flag) { return flag != 0; });
      result_trust.resize(result.size(), all ? 1 : 0);
      result_trust.insert(result_trust.end(), at(end), at(next));
    }
    result.append(text, end, next - end);
    position = next;
  }
  text = std::move(result);
  if (trust != nullptr) *trust = std::move(result_trust);
}

}  // namespace tensorfold::text
