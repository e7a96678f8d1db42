// Checksums of files as the hub names them: SHA-256 for large (LFS) files, git's blob id for the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace tensorfold::hub {

/// How a file's content can be checked.
enum class DigestKind { none, git_sha1, sha256 };

/// A running checksum.
class Digest {
 public:
  /// `size` is the whole content's byte count; git's blob id covers it.
  Digest(DigestKind kind, uint64_t size);
  void update(std::span<const std::byte> bytes);
  /// Lower-case hexadecimal; empty for DigestKind::none. Ends the digest.
  std::string finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace tensorfold::hub
