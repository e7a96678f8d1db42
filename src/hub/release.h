// Releases of this program: finding the newest, checking that it is ours, putting it in the old one's place.
//
// A release list is a small JSON file:
//   {"version": "1.2.3", "notes": "one line", "packages": {"linux-x86_64": {"url": "...", "size": N, "sha256": "<hex>",
//    "signature": "<base64>"}}}
// The signature is Ed25519 over the text of Release::signed_text(), so that a package cannot pass for another version
// or platform. A package is a .tar.gz with one top folder that holds bin/tensorfold and share/.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "hub/http.h"

namespace tensorfold::hub {

/// The newest release, as far as this platform is concerned.
struct Release {
  std::string version;
  std::string notes;
  std::string platform;
  std::string url;
  uint64_t size = 0;
  std::string sha256;
  std::string signature;  ///< base64

  [[nodiscard]] std::string signed_text() const;
};

/// `linux-x86_64`, `linux-aarch64`: system and processor this program was built for.
std::string platform_name();

/// Whether version `a` is newer than `b`; both are "X.Y.Z", compared by numbers. False where either is no version.
bool is_newer_version(const std::string& a, const std::string& b);

/// Reads a release list. Throws Error(network) for text that is none and Error(unsupported) when it has no package for
/// `platform`. A relative package URL is resolved against `list_url`.
Release parse_release(const std::string& text, const std::string& platform, const std::string& list_url);

/// Fetches and reads the release list at `url`. Throws Error(network).
Release fetch_release(const std::string& url, const std::string& platform, const HttpOptions& http);

/// Throws Error(corrupt_file) unless `release` is signed by the holder of `public_key` (base64 of 32 bytes), and
/// Error(unsupported) when there is no key.
void check_signature(const Release& release, const std::string& public_key);

/// Fetches a package, checks size and SHA-256, unpacks it beside `prefix`, starts the new program with --version, and
/// moves its files into `prefix` one rename each, the program last; it is started once more in its place, and what it
/// replaced comes back when anything fails. Throws Error and leaves the old program working; so does a kill at any
/// time.
void install_release(const Release& release, const std::filesystem::path& prefix, const HttpOptions& http);

/// The folder that holds bin/tensorfold of the running program. Throws Error(unsupported) for a program that was not
/// installed from a release (it is not in a folder `bin`, or lies in a build tree).
std::filesystem::path installed_prefix(const std::filesystem::path& executable);

/// What a start-up check needs to know.
struct ReleaseCheckOptions {
  std::string list_url;          ///< empty: no check
  std::string version;           ///< of the running program
  std::filesystem::path memory;  ///< remembers the answer for a day; `~/.cache/tensorfold/update-check.json`
  std::chrono::seconds keep{24 * 3600};
};

/// Looks for a newer release in a thread of its own and gives a line to `tell` if there is one; silent when anything is
/// wrong. Construction never waits; destruction ends the request.
class ReleaseCheck {
 public:
  ReleaseCheck(ReleaseCheckOptions options, std::function<void(const std::string&)> tell);
  ~ReleaseCheck();
  ReleaseCheck(const ReleaseCheck&) = delete;
  ReleaseCheck& operator=(const ReleaseCheck&) = delete;

 private:
  void run();

  ReleaseCheckOptions options_;
  std::function<void(const std::string&)> tell_;
  std::atomic<bool> cancel_{false};
  std::thread thread_;
};

}  // namespace tensorfold::hub
