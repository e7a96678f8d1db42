#include "text/grammar/number_range.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tensorfold::text::grammar {
namespace {

constexpr size_t most_integer_digits = 18;
/// Decimal numbers of this many digits have doubles of their own, in the same order.
constexpr size_t exact_digits = 15;

Expr digit(char first, char last) {
  return first > last ? never() : characters({{static_cast<char32_t>(first), static_cast<char32_t>(last)}});
}
Expr digits(size_t least, size_t most) {
  return repeat(digit('0', '9'), static_cast<uint32_t>(least), static_cast<uint32_t>(most));
}

/// A number as the digits before and behind its point.
struct Decimal {
  bool negative = false;
  std::string whole;     ///< "0" or without leading zeros
  std::string fraction;  ///< without trailing zeros
  [[nodiscard]] bool is_zero() const { return whole == "0" && fraction.empty(); }
};

Decimal parse_decimal(const std::string& number) {
  Decimal result;
  std::string_view text = number;
  if (!text.empty() && text[0] == '-') {
    result.negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view power = text.substr(e + 1);
    if (!power.empty() && power[0] == '+') power.remove_prefix(1);
    std::from_chars(power.data(), power.data() + power.size(), exponent);
    text = text.substr(0, e);
  }
  if (exponent < -30 || exponent > 30) fail(ErrorKind::invalid_request, "the bound {} cannot be enforced", number);
  const size_t point = std::min(text.find('.'), text.size());
  std::string all(text.substr(0, point));
  auto whole_digits = static_cast<int>(all.size()) + exponent;
  if (point < text.size()) all += text.substr(point + 1);
  if (whole_digits < 1) {
    all.insert(0, static_cast<size_t>(1 - whole_digits), '0');
    whole_digits = 1;
  }
  if (all.size() < static_cast<size_t>(whole_digits)) all.resize(static_cast<size_t>(whole_digits), '0');
  result.whole = all.substr(0, static_cast<size_t>(whole_digits));
  result.fraction = all.substr(static_cast<size_t>(whole_digits));
  result.whole.erase(0, std::min(result.whole.find_first_not_of('0'), result.whole.size() - 1));
  result.fraction.erase(result.fraction.find_last_not_of('0') + 1);
  if (result.is_zero()) result.negative = false;
  return result;
}

/// Digit strings of one length between two of them.
Expr same_length(std::string_view least, std::string_view most) {
  if (least.empty()) return empty();
  if (least[0] > most[0]) return never();
  const bool all =
      least.find_first_not_of('0') == std::string_view::npos && most.find_first_not_of('9') == std::string_view::npos;
  if (all) return digits(least.size(), least.size());
  const size_t rest = least.size() - 1;
  if (least[0] == most[0]) {
    return sequence({literal(least.substr(0, 1)), same_length(least.substr(1), most.substr(1))});
  }
  const std::string nines(rest, '9');
  const std::string zeros(rest, '0');
  return choice({sequence({literal(least.substr(0, 1)), same_length(least.substr(1), nines)}),
                 sequence({digit(static_cast<char>(least[0] + 1), static_cast<char>(most[0] - 1)), digits(rest, rest)}),
                 sequence({literal(most.substr(0, 1)), same_length(zeros, most.substr(1))})});
}

bool less(const std::string& a, const std::string& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; }

/// Whole numbers, not negative, between two of them.
Expr whole_between(const std::string& least, const std::string& most) {
  if (less(most, least)) return never();
  if (least.size() == most.size()) return same_length(least, most);
  std::vector<Expr> ways = {same_length(least, std::string(least.size(), '9'))};
  if (most.size() > least.size() + 1) {
    ways.push_back(sequence({digit('1', '9'), digits(least.size(), most.size() - 2)}));
  }
  ways.push_back(same_length("1" + std::string(most.size() - 1, '0'), most));
  return choice(std::move(ways));
}

std::string plus_one(std::string number) {
  for (size_t i = number.size(); i-- > 0;) {
    if (number[i] != '9') {
      ++number[i];
      return number;
    }
    number[i] = '0';
  }
  return "1" + number;
}

std::string minus_one(std::string number) {
  for (size_t i = number.size(); i-- > 0;) {
    if (number[i] != '0') {
      --number[i];
      break;
    }
    number[i] = '9';
  }
  number.erase(0, std::min(number.find_first_not_of('0'), number.size() - 1));
  return number;
}

/// An end of an interval of numbers that are not negative.
struct End {
  std::string whole = "0";
  std::string fraction;
  bool inclusive = true;
};

/// The digits behind the point of numbers whose whole part is that of one or both ends.
class Fractions {
 public:
  Fractions(const End* least, const End* most, size_t longest) : least_(least), most_(most), longest_(longest) {}
  Expr build() const {
    const Expr digits_follow = sequence({literal("."), more(0, least_ != nullptr, most_ != nullptr)});
    return choice({may_stop(0, least_ != nullptr, most_ != nullptr) ? empty() : never(), digits_follow});
  }

 private:
  static char digit_at(const End& end, size_t i) { return i < end.fraction.size() ? end.fraction[i] : '0'; }
  /// Whether the number may end before digit i, when so far it equals the ends it is tight to.
  [[nodiscard]] bool may_stop(size_t i, bool tight_least, bool tight_most) const {
    if (tight_least && (i < least_->fraction.size() || !least_->inclusive)) return false;
    return !tight_most || i < most_->fraction.size() || most_->inclusive;
  }
  [[nodiscard]] Expr rest(size_t i, bool tight_least, bool tight_most) const {
    if (tight_least && i >= least_->fraction.size() && least_->inclusive) tight_least = false;
    if (!tight_least && !tight_most) return digits(0, longest_ - i);
    return choice({may_stop(i, tight_least, tight_most) ? empty() : never(), more(i, tight_least, tight_most)});
  }
  /// Digit i and what follows.
  [[nodiscard]] Expr more(size_t i, bool tight_least, bool tight_most) const {
    if (i >= longest_) return never();
    const char low = tight_least ? digit_at(*least_, i) : '0';
    const char high = tight_most ? digit_at(*most_, i) : '9';
    if (low > high) return never();
    if (low == high) return sequence({literal(std::string(1, low)), rest(i + 1, tight_least, tight_most)});
    const char inner_low = tight_least ? static_cast<char>(low + 1) : low;
    const char inner_high = tight_most ? static_cast<char>(high - 1) : high;
    std::vector<Expr> ways = {sequence({digit(inner_low, inner_high), rest(i + 1, false, false)})};
    if (tight_least) ways.push_back(sequence({literal(std::string(1, low)), rest(i + 1, true, false)}));
    if (tight_most) ways.push_back(sequence({literal(std::string(1, high)), rest(i + 1, false, true)}));
    return choice(std::move(ways));
  }
  const End* least_;
  const End* most_;
  size_t longest_;
};

Expr positive_between(const End& least, const std::optional<End>& most) {
  const size_t whole_digits = std::max(least.whole.size(), most ? most->whole.size() : 1);
  const size_t fraction_digits = std::max(least.fraction.size(), most ? most->fraction.size() : 0);
  if (whole_digits + fraction_digits > exact_digits) {
    fail(ErrorKind::invalid_request, "a bound has more than {} digits", exact_digits);
  }
  const size_t longest = exact_digits - whole_digits;
  const Expr any = Fractions(nullptr, nullptr, longest).build();
  if (most && least.whole == most->whole) {
    return sequence({literal(least.whole), Fractions(&least, &*most, longest).build()});
  }
  if (most && less(most->whole, least.whole)) return never();
  std::vector<Expr> ways = {sequence({literal(least.whole), Fractions(&least, nullptr, longest).build()})};
  const std::string next = plus_one(least.whole);
  const std::string last = most ? minus_one(most->whole) : std::string(exact_digits, '9');
  ways.push_back(sequence({whole_between(next, last), any}));
  if (most) ways.push_back(sequence({literal(most->whole), Fractions(nullptr, &*most, longest).build()}));
  return choice(std::move(ways));
}

End end_of(const Decimal& number, bool inclusive) { return {number.whole, number.fraction, inclusive}; }

/// The nearest integer inside a bound.
Decimal integer_inside(const NumberBound& bound, bool is_least) {
  Decimal number = parse_decimal(bound.number);
  const bool outward = number.fraction.empty() && !bound.inclusive;
  const bool cut = !number.fraction.empty();
  number.fraction.clear();
  if (!outward && !cut) return number;
  // Away from zero for a least bound that is positive and a most bound that is negative, else towards it.
  if (number.negative == is_least) {
    if (cut) {
      if (number.whole == "0") number.negative = false;
      return number;
    }
    if (number.whole == "0") {  // a most bound below 0, exclusive
      number.whole = "1";
      number.negative = true;
      return number;
    }
    number.whole = minus_one(number.whole);
    if (number.whole == "0") number.negative = false;
    return number;
  }
  number.whole = plus_one(number.whole);
  return number;
}

}  // namespace

Expr integers_between(const std::optional<NumberBound>& least, const std::optional<NumberBound>& most) {
  const std::string largest(most_integer_digits, '9');
  const Decimal low = least ? integer_inside(*least, true) : Decimal{true, largest, {}};
  const Decimal high = most ? integer_inside(*most, false) : Decimal{false, largest, {}};
  for (const Decimal& bound : {low, high}) {
    if (bound.whole.size() > most_integer_digits) {
      fail(ErrorKind::invalid_request, "a bound has more than {} digits", most_integer_digits);
    }
  }
  std::vector<Expr> ways;
  if (low.negative) {
    const std::string from = high.negative ? high.whole : "1";
    ways.push_back(sequence({literal("-"), whole_between(from, low.whole)}));
  }
  if (!high.negative) ways.push_back(whole_between(low.negative ? "0" : low.whole, high.whole));
  return choice(std::move(ways));
}

Expr numbers_between(const std::optional<NumberBound>& least, const std::optional<NumberBound>& most) {
  std::vector<Expr> ways;
  std::optional<Decimal> low;
  std::optional<Decimal> high;
  if (least) low = parse_decimal(least->number);
  if (most) high = parse_decimal(most->number);
  const End zero;
  const End above_zero{"0", "", false};
  if (!high || !high->negative) {
    const bool from_zero = !low || low->negative;
    std::optional<End> end;
    if (high) end = end_of(*high, most->inclusive);
    ways.push_back(positive_between(from_zero ? zero : end_of(*low, least->inclusive), end));
  }
  if (!low || low->negative) {
    std::optional<End> end;
    if (low) end = end_of(*low, least->inclusive);
    const End start = high && high->negative ? end_of(*high, most->inclusive) : above_zero;
    ways.push_back(sequence({literal("-"), positive_between(start, end)}));
  }
  return choice(std::move(ways));
}

}  // namespace tensorfold::text::grammar
