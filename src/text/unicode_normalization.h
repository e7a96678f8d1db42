// Unicode normalisation forms (UAX 15) with the data of Unicode 9.0, which is what Hugging Face's tokenizers use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tensorfold::text {

enum class NormalizationForm { nfc, nfd, nfkc, nfkd };

/// Normalises valid UTF-8 in place. Time is linear but for the sort of one run of combining marks (n log n).
/// `trust`, when given, holds one flag for each byte of `text` and is rewritten to match the result: a changed stretch
/// is trusted only if all of it was.
void normalize(NormalizationForm form, std::string& text, std::vector<std::uint8_t>* trust = nullptr);

}  // namespace tensorfold::text
