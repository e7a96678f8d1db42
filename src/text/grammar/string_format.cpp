#include "text/grammar/string_format.h"

#include <map>

#include <fmt/format.h>

namespace tensorfold::text::grammar {
namespace {

// Dates by RFC 3339: no day that the month does not have, 29 February in leap years only, no year 0.
constexpr const char* year = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])";
constexpr const char* leap_year = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";

std::string date() {
  return fmt::format(
      "(?:{}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
      "02-(?:0[1-9]|1[0-9]|2[0-8]))|{}-02-29)",
      year, leap_year);
}

std::string time() {
  return "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?"
         "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
}

std::string duration() {
  const std::string clock = "T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S)";
  const std::string days = "(?:[0-9]{1,6}D|[0-9]{1,6}M(?:[0-9]{1,6}D)?|[0-9]{1,6}Y(?:[0-9]{1,6}M(?:[0-9]{1,6}D)?)?)";
  return fmt::format("P(?:[0-9]{{1,6}}W|{0}(?:{1})?|{1})", days, clock);
}

std::string ipv4() {
  const std::string byte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  return fmt::format("{0}(?:\\.{0}){{3}}", byte);
}

std::string ipv6() {
  const std::string group = "[0-9a-fA-F]{1,4}";
  std::string ways = fmt::format("(?:{0}:){{7}}{0}", group);
  // left groups, "::", at most 7 groups in all.
  for (int left = 0; left <= 7; ++left) {
    ways += "|";
    if (left > 0) ways += fmt::format("{0}(?::{0}){{{1}}}", group, left - 1);
    ways += "::";
    if (left < 7) ways += fmt::format("(?:{0}(?::{0}){{0,{1}}})?", group, 6 - left);
  }
  return "(?:" + ways + ")";
}

std::string host_name() {
  const std::string label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,20}[a-zA-Z0-9])?";
  return fmt::format("{0}(?:\\.{0}){{0,5}}", label);
}

std::string email() {
  const std::string word = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,20}";
  const std::string label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,20}[a-zA-Z0-9])?";
  return word + "(?:\\." + word + "){0,2}@" + label + "(?:\\." + label + "){0,3}\\.[a-zA-Z]{2,12}";
}

// URIs by RFC 3986, without user names and with hosts by name only.
constexpr const char* path_letter = "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";

std::string query_and_fragment() { return fmt::format("(?:\\?(?:{0}|[/?])*)?(?:#(?:{0}|[/?])*)?", path_letter); }

std::string authority_and_path() { return fmt::format("//{}(?::[0-9]{{1,5}})?(?:/{}*)*", host_name(), path_letter); }

std::string uri() { return "[a-zA-Z][a-zA-Z0-9+.-]{0,15}:" + authority_and_path() + query_and_fragment(); }

/// A URI, or what stands for one beside a base: without a scheme, its first segment has no colon.
std::string uri_reference() {
  const std::string from_root = fmt::format("/(?:{0}+(?:/{0}*)*)?", path_letter);
  const std::string from_here = fmt::format("(?:[a-zA-Z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{{2}})+(?:/{}*)*", path_letter);
  return fmt::format("(?:{}|(?:{}|{}|{})?{})", uri(), authority_and_path(), from_root, from_here, query_and_fragment());
}

}  // namespace

std::optional<std::string> format_pattern(std::string_view format) {
  static const std::map<std::string, std::string, std::less<>> patterns = {
      {"date", date()},
      {"time", time()},
      {"date-time", date() + "T" + time()},
      {"duration", duration()},
      {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
      {"ipv4", ipv4()},
      {"ipv6", ipv6()},
      {"hostname", host_name()},
      {"idn-hostname", host_name()},
      {"email", email()},
      {"idn-email", email()},
      {"uri", uri()},
      {"iri", uri()},
      {"uri-reference", uri_reference()},
      {"iri-reference", uri_reference()},
  };
  const auto found = patterns.find(format);
  if (found == patterns.end()) return std::nullopt;
  return "^(?:" + found->second + ")$";
}

}  // namespace tensorfold::text::grammar
