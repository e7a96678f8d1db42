// What a loaded tokenizer consists of. For the tokenizer's own sources.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "text/tokenizer_added_tokens.h"
#include "text/tokenizer_bpe.h"
#include "text/tokenizer_decoder.h"
#include "text/tokenizer_normalizer.h"
#include "text/tokenizer_post_processor.h"
#include "text/tokenizer_pre_tokenizer.h"

namespace tensorfold::text {

/// Scratch memory of encoders, handed to one caller at a time.
class ScratchPool {
 public:
  std::unique_ptr<BpeScratch> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<BpeScratch>();
    std::unique_ptr<BpeScratch> result = std::move(free_.back());
    free_.pop_back();
    return result;
  }
  void give_back(std::unique_ptr<BpeScratch> scratch) {
    const std::lock_guard lock(mutex_);
    if (free_.size() < most_kept) free_.push_back(std::move(scratch));
  }

 private:
  static constexpr std::size_t most_kept = 16;
  std::mutex mutex_;
  std::vector<std::unique_ptr<BpeScratch>> free_;
};

struct Tokenizer::State {
  explicit State(BpeModel bpe) : model(std::move(bpe)) {}

  BpeModel model;
  std::unique_ptr<const Normalizer> normalizer;
  PreTokenizerPipeline pre_tokenizer;
  PostProcessor post_processor;
  Decoder decoder;
  std::vector<AddedToken> added;          // by id
  std::vector<std::string> added_texts;   // their contents; of a `normalized` token the normalised one, as it is shown
  std::vector<std::int32_t> added_index;  // by id: index into `added`, or -1
  std::map<std::string, std::int32_t, std::less<>> added_ids;  // by content
  AddedTokenFinder raw_finder;                                 // tokens looked for in the text as it came
  AddedTokenFinder normalized_finder;                          // tokens looked for behind the normaliser
  std::map<std::string, std::string, std::less<>> named_tokens;
  mutable ScratchPool scratch;

  [[nodiscard]] const AddedToken* find_added(std::int32_t id) const {
    const auto index = static_cast<std::size_t>(id);
    if (id < 0 || index >= added_index.size() || added_index[index] < 0) return nullptr;
    return &added[static_cast<std::size_t>(added_index[index])];
  }
  [[nodiscard]] std::optional<std::string_view> token(std::int32_t id) const {
    if (find_added(id) != nullptr)
      return added_texts[static_cast<std::size_t>(added_index[static_cast<std::size_t>(id)])];
    return model.vocabulary().token(id);
  }
};

}  // namespace tensorfold::text
