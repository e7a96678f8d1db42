// Where the hub is, where its cache is, and who we are to it: the environment variables of the Hugging Face tools.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace tensorfold::hub {

/// Looks a variable of the environment up; null when it is not set.
using Environment = std::function<const char*(const char*)>;

/// What the environment says about the hub.
struct Settings {
  std::filesystem::path cache_root;                   ///< holds `models--owner--name` folders
  std::string endpoint = "https://huggingface.co";    ///< without a slash at its end
  std::optional<std::string> token;                   ///< sent to `endpoint` and nowhere else
  std::string token_source;                           ///< "HF_TOKEN" or the file it came from; for messages
  bool offline = false;                               ///< no network call at all
  std::optional<std::filesystem::path> certificates;  ///< a CA bundle instead of the built-in place

  /// Reads HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME (first wins) for the cache;
  /// HF_ENDPOINT; HF_TOKEN, HUGGING_FACE_HUB_TOKEN, HF_TOKEN_PATH, `$HF_HOME/token` for the token unless
  /// HF_HUB_DISABLE_IMPLICIT_TOKEN; HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE; CURL_CA_BUNDLE, REQUESTS_CA_BUNDLE,
  /// SSL_CERT_FILE. Throws invalid_request for an endpoint that is no URL or a token with control characters.
  static Settings from_environment(const Environment& environment);
  static Settings from_environment();
};

}  // namespace tensorfold::hub
