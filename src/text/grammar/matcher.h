// Walks a compiled grammar over the bytes of a reply and says which tokens may come next.
//
// What the automaton may be in after a text is a set of stacks, hash-consed: a place is a state, the place to return to
// and a loop's count; a configuration is a set of places whose state reads a byte. Configurations, their transitions
// and their token masks are kept, so that a text that comes by again costs a look-up a byte and a copy a mask.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/vocabulary.h"

namespace tensorfold::text::grammar {

/// A grammar over a vocabulary. One may serve many replies from several threads; what it keeps is bounded.
class Matcher {
 public:
  Matcher(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary);

  /// A place in a text: what the bytes so far lead to. It belongs to one Matcher.
  class Cursor {
   public:
    Cursor() = default;

   private:
    friend class Matcher;
    uint32_t configuration_ = 0;
    uint32_t epoch_ = 0;
    std::string text_;  ///< so far; what the matcher dropped is found again from it
  };

  [[nodiscard]] Cursor begin();
  /// Moves on by these bytes; false, with the cursor dead from then on, when the grammar does not allow them.
  bool advance(Cursor& cursor, std::string_view bytes);
  [[nodiscard]] static bool dead(const Cursor& cursor) { return cursor.configuration_ == 0; }

  // What holds after the cursor's text and `ahead`; the cursor stays where it is.

  /// How a text stands to the grammar.
  enum class Standing {
    dead,      ///< no text of the grammar begins like this
    open,      ///< more is needed
    complete,  ///< a whole text; more may follow
    exhausted  ///< a whole text; nothing may follow
  };
  Standing standing(Cursor& cursor, std::string_view ahead = {});
  /// Sets the bits of the tokens that may come next and clears all others. Returns the standing; a dead one leaves the
  /// bits alone.
  Standing mask(Cursor& cursor, std::string_view ahead, std::span<uint32_t> bits);

  [[nodiscard]] const Vocabulary& vocabulary() const { return *vocabulary_; }
  /// Whether the grammar matches a whole text.
  bool matches(std::string_view text);
  /// Bounds on what is kept; for tests.
  void set_limits(size_t configurations, size_t masks);

 private:
  static constexpr uint32_t no_place = 0;  ///< below the root: the text may end
  static constexpr uint32_t dead_configuration = 0;

  struct Place {
    uint32_t state;
    uint32_t parent;
    uint32_t count;
    friend bool operator==(const Place&, const Place&) = default;
  };
  struct PlaceHash {
    size_t operator()(const Place& place) const {
      uint64_t hash = place.state * 0x9E3779B97F4A7C15ULL;
      hash = (hash ^ (hash >> 29U) ^ place.parent) * 0xBF58476D1CE4E5B9ULL;
      hash = (hash ^ (hash >> 32U) ^ place.count) * 0x94D049BB133111EBULL;
      return hash ^ (hash >> 31U);
    }
  };
  struct Configuration {
    std::vector<uint32_t> places;  ///< sorted; each state has byte edges
    bool accepting = false;
  };

  void clear();
  void revive(Cursor& cursor);
  uint32_t place(uint32_t state, uint32_t parent, uint32_t count);
  void expand();
  void visit(uint32_t place);
  uint32_t finish_expansion();
  uint32_t configuration(std::vector<uint32_t> places, bool accepting);
  uint32_t compute_next(uint32_t configuration, uint8_t byte_class);
  uint32_t next(uint32_t configuration, uint8_t byte) {
    const uint8_t byte_class = automaton_.byte_class[byte];
    const uint32_t known = next_[size_t{configuration} * automaton_.byte_classes + byte_class];
    return known != unknown ? known : compute_next(configuration, byte_class);
  }
  [[nodiscard]] Standing standing_of(uint32_t configuration) const;
  uint32_t reach(Cursor& cursor, std::string_view ahead);
  [[nodiscard]] uint64_t room_in_string(const Place& at) const;
  void walk(const TokenTrie& trie, uint32_t configuration, TokenMask& mask);
  TokenMask compute_mask(uint32_t configuration);

  static constexpr uint32_t unknown = 0xFFFFFFFFU;

  Automaton automaton_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::array<uint8_t, 256> class_byte_{};  ///< some byte of each class
  size_t most_configurations_ = 20'000;
  size_t most_masks_;

  std::mutex mutex_;  // guards what follows
  uint32_t epoch_ = 0;
  std::vector<Place> places_;
  std::unordered_map<Place, uint32_t, PlaceHash> place_ids_;
  std::vector<uint32_t> seen_;  ///< by place: the last expansion that saw it
  uint32_t expansion_ = 0;
  std::vector<uint32_t> pending_;
  std::vector<uint32_t> reading_;
  bool accepting_ = false;
  std::vector<Configuration> configurations_;
  std::unordered_map<std::u32string, uint32_t> configuration_ids_;
  std::vector<uint32_t> next_;  ///< by configuration and class of byte
  uint32_t first_ = 0;
  std::unordered_map<uint32_t, TokenMask> masks_;
  std::vector<uint32_t> walk_stack_;
};

}  // namespace tensorfold::text::grammar
