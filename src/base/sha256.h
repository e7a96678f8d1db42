// SHA-256: checksums of files, names of cached things, default seeds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tensorfold {

using Sha256Digest = std::array<uint8_t, 32>;

/// An incremental digest. A finished digest must not be updated again.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  Sha256Digest finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Sha256Digest sha256(std::span<const std::byte> bytes);
Sha256Digest sha256(std::string_view text);
/// Lower-case hexadecimal, 64 digits.
std::string to_hex(const Sha256Digest& digest);

}  // namespace tensorfold
