#include "base/digest.h"

#include <array>
#include <cstring>

namespace tensorfold {

uint64_t digest_of(std::span<const std::byte> bytes) {
  // Four chains, so that large inputs are not bound by the multiplier's latency.
  std::array<uint64_t, 4> chains = {1, 2, 3, 4};
  size_t i = 0;
  for (; i + 32 <= bytes.size(); i += 32) {
    for (size_t lane = 0; lane < 4; ++lane) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i + 8 * lane, sizeof word);
      chains[lane] = (chains[lane] ^ word) * 0x9E3779B97F4A7C15;
      chains[lane] ^= chains[lane] >> 29;
    }
  }
  uint64_t result = bytes.size();
  for (; i < bytes.size(); ++i) result = mix_bits(result ^ static_cast<uint64_t>(bytes[i]));
  for (const uint64_t chain : chains) result = mix_bits(result ^ chain);
  return result;
}

}  // namespace tensorfold
