// Byte-pair encoding: turns a word into token ids by merging neighbours, lowest rank first.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_vocabulary.h"

namespace tensorfold::text {

/// What tokenizer.json says about its BPE model besides vocabulary and merges.
struct BpeOptions {
  std::optional<std::string> unknown_token;
  std::string continuing_prefix;   ///< put before every character of a word but the first
  std::string end_of_word_suffix;  ///< put behind a word's last character
  bool fuse_unknown = false;       ///< neighbouring unknown characters become one unknown token
  bool byte_fallback = false;      ///< a character without a token becomes its bytes' tokens <0x00> .. <0xFF>
  bool ignore_merges = false;      ///< a word that is a token is that token, whatever the merges say
  bool byte_level = false;         ///< words are bytes and the vocabulary is written in the byte-level alphabet
};

/// Two neighbouring tokens that merge; the index in the list is the rank.
struct BpeMerge {
  std::string_view left;
  std::string_view right;
};

/// Memory that encoding reuses between words: symbols, a queue, and a cache of short words of fixed size (2 MiB).
/// Belongs to one model; not to be used by two threads at once.
class BpeScratch {
 public:
  BpeScratch();

 private:
  friend class BpeModel;
  struct Symbol {
    std::int32_t id;
    std::int32_t previous;
    std::int32_t next;  // -1: none
    std::uint32_t alive;
  };
  struct Candidate {
    std::uint32_t rank;
    std::uint32_t position;
    std::int32_t merged;
  };
  static constexpr std::size_t longest_cached_word = 30;
  static constexpr std::size_t most_cached_ids = 6;
  struct CachedWord {
    std::uint64_t hash = 0;
    std::uint8_t length = 0;  // 0: empty slot
    std::uint8_t count = 0;
    std::array<char, longest_cached_word> text{};
    std::array<std::int32_t, most_cached_ids> ids{};
  };
  std::vector<Symbol> symbols_;
  std::vector<Candidate> queue_;
  std::vector<std::uint64_t> ranks_;
  std::vector<CachedWord> cache_;
};

/// The model. Immutable after construction, safe to share between threads.
class BpeModel {
 public:
  /// Error corrupt_file if a merge names a token that the vocabulary lacks (or whose joined form it lacks).
  BpeModel(Vocabulary vocabulary, std::span<const BpeMerge> merges, BpeOptions options);

  [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }

  /// Appends the ids of one word (valid UTF-8) to `out`. Time O(n log n) in the word's length, memory O(n), no
  /// recursion.
  void encode_word(std::string_view word, BpeScratch& scratch, std::vector<std::int32_t>& out) const;

 private:
  struct Pair {
    std::uint64_t key = UINT64_MAX;  // left id << 32 | right id
    std::uint32_t rank = 0;
    std::int32_t merged = -1;
  };
  void add_merges(std::span<const BpeMerge> merges);
  void find_cuts();
  void encode_uncut(std::string_view word, BpeScratch& scratch, std::vector<std::int32_t>& out) const;
  void encode_fresh(std::string_view word, BpeScratch& scratch, std::vector<std::int32_t>& out) const;
  void split_bytes(std::string_view word, BpeScratch& scratch) const;
  void split_characters(std::string_view word, BpeScratch& scratch) const;
  void merge_short(BpeScratch& scratch) const;
  void merge_long(BpeScratch& scratch) const;
  [[nodiscard]] const Pair* find_pair(std::int32_t left, std::int32_t right) const;
  [[nodiscard]] std::optional<std::int32_t> find_character(std::string_view character) const;
  [[nodiscard]] std::size_t next_cut(std::string_view word, std::size_t position) const;

  Vocabulary vocabulary_;
  BpeOptions options_;
  std::vector<Pair> pairs_;                       // open addressing; size is a power of two
  std::array<std::int32_t, 256> byte_ids_{};      // byte level: the token of each byte; -1: none
  std::array<std::int32_t, 256> fallback_ids_{};  // byte fallback: the token <0xNN> of each byte; -1: none
  bool fallback_complete_ = false;
  bool cuts_ = false;                      // whether long words may be cut where no token spans
  std::vector<std::uint64_t> neighbours_;  // bits: hashed pairs of characters that stand together in some token
};

}  // namespace tensorfold::text
