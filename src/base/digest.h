// A fast 64-bit digest of bytes, for checksums and comparisons. Not for secrets: collisions can be made on purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tensorfold {

/// Equal bytes give equal digests, on every machine of our byte order.
uint64_t digest_of(std::span<const std::byte> bytes);
inline uint64_t digest_of(std::string_view text) { return digest_of(std::as_bytes(std::span(text))); }

/// SplitMix64's finaliser: a bijection that mixes all bits.
constexpr uint64_t mix_bits(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9;
  x ^= x >> 27;
  x *= 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace tensorfold
