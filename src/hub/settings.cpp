#include "hub/settings.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <system_error>

#include "base/error.h"

namespace tensorfold::hub {
namespace {

std::optional<std::string> variable(const Environment& environment, const char* name) {
  const char* value = environment(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<std::string> first_of(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (auto value = variable(environment, name)) return value;
  return std::nullopt;
}

bool is_true(const std::optional<std::string>& value) {
  if (!value) return false;
  std::string upper = *value;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  constexpr std::array kTrue = {"1", "ON", "YES", "TRUE"};
  return std::find(kTrue.begin(), kTrue.end(), upper) != kTrue.end();
}

std::filesystem::path expanded(const Environment& environment, const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  return std::filesystem::path(variable(environment, "HOME").value_or("/")) /
         path.substr(std::min<size_t>(2, path.size()));
}

std::string trimmed(const std::string& text) {
  const char* blanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

void read_token(Settings& settings, const Environment& environment, const std::filesystem::path& home) {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    const auto value = variable(environment, name);
    if (!value || trimmed(*value).empty()) continue;
    settings.token = trimmed(*value);
    settings.token_source = name;
    break;
  }
  if (!settings.token) {
    const auto named = variable(environment, "HF_TOKEN_PATH");
    const std::filesystem::path file = named ? expanded(environment, *named) : home / "token";
    std::error_code error;
    if (std::filesystem::is_directory(file, error))
      fail(ErrorKind::invalid_request,
           "the hub token's file {} is a folder: remove it, set HF_TOKEN, or name a file in HF_TOKEN_PATH",
           file.string());
    std::ifstream in(file, std::ios::binary);
    const std::string text = trimmed(std::string(std::istreambuf_iterator<char>(in), {}));
    if (!text.empty()) {
      settings.token = text;
      settings.token_source = file.string();
    }
  }
  if (!settings.token) return;
  const auto odd = [](char c) {
    return static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7f;
  };
  if (std::any_of(settings.token->begin(), settings.token->end(), odd))
    fail(ErrorKind::invalid_request, "the hub token from {} holds blanks or control characters", settings.token_source);
}

}  // namespace

Settings Settings::from_environment(const Environment& environment) {
  Settings settings;
  std::filesystem::path home;
  if (const auto value = variable(environment, "HF_HOME")) {
    home = expanded(environment, *value);
  } else if (const auto xdg = variable(environment, "XDG_CACHE_HOME")) {
    home = expanded(environment, *xdg) / "huggingface";
  } else {
    home = expanded(environment, "~/.cache/huggingface");
  }
  const auto cache = first_of(environment, {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  settings.cache_root = cache ? expanded(environment, *cache) : home / "hub";

  if (const auto endpoint = variable(environment, "HF_ENDPOINT")) {
    settings.endpoint = trimmed(*endpoint);
    while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
    if (!settings.endpoint.starts_with("https://") && !settings.endpoint.starts_with("http://"))
      fail(ErrorKind::invalid_request, "HF_ENDPOINT is '{}': it has to start with https:// or http://", *endpoint);
  }
  if (!is_true(variable(environment, "HF_HUB_DISABLE_IMPLICIT_TOKEN"))) read_token(settings, environment, home);
  settings.offline =
      is_true(variable(environment, "HF_HUB_OFFLINE")) || is_true(variable(environment, "TRANSFORMERS_OFFLINE"));
  if (const auto bundle = first_of(environment, {"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}))
    settings.certificates = *bundle;
  return settings;
}

Settings Settings::from_environment() {
  return from_environment([](const char* name) { return std::getenv(name); });
}

}  // namespace tensorfold::hub
