// How failures travel. The rule for the whole program:
//   * What a caller asked for cannot be done (bad file, bad request, no memory, no network): throw Error, one kind, one
//     line that says what is wrong and, where there is one, what to do. Throw where it is found; catch where something
//     can be done about it: at a command, a request, an engine step.
//   * A thing that may simply be absent is a std::optional or a pointer, never an exception.
//   * A broken invariant of ours is check(): it throws ErrorKind::internal and stays on in release builds.
//   * Destructors, kernels and the threads inside a kernel do not throw.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace tensorfold {

/// What went wrong, as far as a caller acts on it. The server maps a kind to an HTTP status, the command line to exit
/// code 1.
enum class ErrorKind {
  invalid_request,  ///< the caller's argument or request is wrong
  not_found,        ///< a file, a model, a repository, a route
  unsupported,      ///< well formed, but not something this build can do
  corrupt_file,     ///< a file whose content contradicts itself or its format
  capacity,         ///< memory, disk, context or queue is too small
  unauthorized,     ///< a key or token is missing or refused
  io,               ///< the operating system refused a read or a write
  network,          ///< a remote did not answer or answered nonsense
  cancelled,        ///< the caller went away or asked to stop
  internal,         ///< our own mistake
};

/// Short lower-case name of a kind, for logs and tests.
std::string_view to_string(ErrorKind kind);

/// A failure with its kind and a one-line message fit for a user.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws ErrorKind::internal unless `holds`; `what` says which invariant broke.
inline void check(bool holds, const char* what) {
  if (!holds) throw Error(ErrorKind::internal, std::string("internal error: ") + what);
}

}  // namespace tensorfold
