// A call's arguments rewritten as compact JSON while their text arrives, so that they can go out as they grow.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold::text {

enum class ArgumentSyntax {
  json,
  gemma,  ///< keys without quotes, strings between <|"|> marks, a comma may be the last thing; otherwise JSON
};

/// Reads one object. What it has written never changes and depends on the text read alone, not on its pieces: strings
/// are written as they grow, numbers and constants once they are complete. What is written of a complete object is what
/// parsing it and writing it compactly gives, but that a repeated key stays repeated.
class GrowingArguments {
 public:
  enum class Status { more, complete, broken };

  /// `begin`: where the object's brace stands in the text. `json` is appended to and must live longer.
  GrowingArguments(ArgumentSyntax syntax, std::size_t begin, std::string& json)
      : syntax_(syntax), at_(begin), json_(json) {}

  /// Reads on. `text` starts where it always did and only grows; its bytes are valid UTF-8.
  Status advance(std::string_view text);
  /// Behind the object, once it is complete.
  [[nodiscard]] std::size_t end() const { return at_; }

 private:
  enum class State {
    value,        ///< a value must come
    first_item,   ///< a value or the list's end
    first_key,    ///< a key or the object's end
    key,          ///< a key must come
    colon,        ///< behind a key
    behind_item,  ///< a comma or the end of the list or object
    quoted,       ///< in a string with escapes
    marked,       ///< in a string without escapes, up to `closing_`
    complete,
    broken,
  };

  bool step(std::string_view text);
  bool begin_value(std::string_view text);
  bool begin_key(std::string_view text);
  bool read_colon(std::string_view text);
  bool read_behind_item(std::string_view text);
  bool read_quoted(std::string_view text);
  bool read_escape(std::string_view text);
  bool read_marked(std::string_view text);
  bool read_scalar(std::string_view text);
  bool read_bare_key(std::string_view text);
  bool open(char bracket);
  bool close(char bracket);
  bool begin_string(State state, bool is_key, std::string_view closing, std::size_t opening_size);
  bool end_string(std::size_t closing_size);
  bool break_off();
  void write_comma();

  ArgumentSyntax syntax_;
  std::size_t at_;
  std::string& json_;
  State state_ = State::value;
  std::vector<char> open_;      ///< the brackets around
  bool owes_comma_ = false;     ///< a comma was read and something must follow before it counts
  bool string_is_key_ = false;  ///< the string being read
  std::string_view closing_;    ///< of a marked string
  std::size_t search_ = 0;      ///< of a number's or a bare key's end
};

}  // namespace tensorfold::text
