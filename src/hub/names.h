// Names that come from a user, a network or a file on disk, and the rules that make them safe to use in a path or a
// URL.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tensorfold::hub {

/// A model repository on the hub, `owner/name`, with an optional revision (branch, tag or commit).
struct RepoId {
  std::string owner;
  std::string name;
  std::string revision;  ///< empty: the default branch

  /// `owner/name`.
  [[nodiscard]] std::string id() const { return owner + "/" + name; }
  /// The revision to ask for: `main` when none was given.
  [[nodiscard]] std::string revision_or_main() const { return revision.empty() ? "main" : revision; }
  /// The folder of this repository below a cache root: `models--owner--name`.
  [[nodiscard]] std::string folder() const { return "models--" + owner + "--" + name; }
  bool operator==(const RepoId&) const = default;
};

/// Reads `owner/name` or `owner/name@revision`: exactly one '/' before the '@', each side starting with an ASCII letter
/// or digit and going on with letters, digits, '.', '_', '-'. Nothing when the text is something else.
std::optional<RepoId> parse_repo(std::string_view text);

/// A branch, tag or commit that can be a relative path of a ref file: letters, digits, ". _ - /", no empty, "." or ".."
/// component.
bool is_safe_revision(std::string_view text);

/// The relative path of a file in a repository: no NUL, control character or backslash, not absolute, no empty, "." or
/// ".." component, each component at most 255 bytes and the whole at most 1,024.
bool is_safe_file_name(std::string_view text);

/// A commit hash as the hub gives it: 40 lower-case hexadecimal digits.
bool is_commit_hash(std::string_view text);

/// One path component made of letters, digits, '.', '_', '-' that does not start with a dot: a blob's or snapshot's
/// name.
bool is_safe_component(std::string_view text);

/// `text` with everything but unreserved characters percent-encoded; `keep_slash` leaves '/' alone.
std::string percent_encoded(std::string_view text, bool keep_slash);

/// `text` without control characters and cut to `limit` bytes, for showing a remote's words to a user.
std::string printable(std::string_view text, size_t limit = 200);

}  // namespace tensorfold::hub
