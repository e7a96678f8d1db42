#include "hub/digest.h"

#include <array>

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/error.h"

namespace tensorfold::hub {

void Digest::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Digest::Digest(DigestKind kind, uint64_t size) {
  if (kind == DigestKind::none) return;
  context_.reset(EVP_MD_CTX_new());
  const EVP_MD* algorithm = kind == DigestKind::sha256 ? EVP_sha256() : EVP_sha1();
  check(context_ != nullptr && EVP_DigestInit_ex(context_.get(), algorithm, nullptr) == 1, "a digest starts");
  if (kind == DigestKind::git_sha1) {
    std::string header = fmt::format("blob {}", size);
    header += '\0';
    update(std::as_bytes(std::span(header)));
  }
}

void Digest::update(std::span<const std::byte> bytes) {
  if (context_ == nullptr) return;
  check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "a digest goes on");
}

std::string Digest::finish() {
  if (context_ == nullptr) return "";
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int length = 0;
  check(EVP_DigestFinal_ex(context_.get(), bytes.data(), &length) == 1, "a digest ends");
  context_.reset();
  std::string text;
  for (unsigned int i = 0; i < length; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

}  // namespace tensorfold::hub
