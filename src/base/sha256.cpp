#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace tensorfold {

struct Sha256::Context {
  Context() : evp(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    check(evp != nullptr && EVP_DigestInit_ex(evp.get(), EVP_sha256(), nullptr) == 1, "SHA-256 did not start");
  }
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> evp;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(context_->evp.get(), bytes.data(), bytes.size()) == 1, "SHA-256 refused bytes");
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest{};
  check(EVP_DigestFinal_ex(context_->evp.get(), digest.data(), nullptr) == 1, "SHA-256 did not finish");
  return digest;
}

Sha256Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

Sha256Digest sha256(std::string_view text) { return sha256(std::as_bytes(std::span(text))); }

std::string to_hex(const Sha256Digest& digest) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * digest.size());
  for (const uint8_t byte : digest) {
    text.push_back(digits[byte >> 4]);
    text.push_back(digits[byte & 15]);
  }
  return text;
}

}  // namespace tensorfold
