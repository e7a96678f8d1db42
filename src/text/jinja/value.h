// The values of the template language: Python's None, bool, int, float, str, list, tuple and dict as far as templates
// see them, Jinja's undefined, and objects that can be called or have attributes. Containers are immutable once made
// and shared between copies; only a namespace changes (see objects.h).
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/marked_text.h"

namespace tensorfold::text::jinja {

/// Integers are Python's within 128 bits; results beyond that are an error.
__extension__ typedef __int128 Int;

class Value;
class Object;
struct Sequence;
class Dict;

struct None {};
/// A missing name, attribute or item; using it for anything but printing and testing fails with `message`.
struct Undefined {
  std::shared_ptr<const std::string> message;
};

enum class SequenceKind { list, tuple, generator, range, dict_keys, dict_values, dict_items };

class Value {
 public:
  using Storage = std::variant<None, Undefined, bool, Int, double, MarkedText, std::shared_ptr<const Sequence>,
                               std::shared_ptr<const Dict>, std::shared_ptr<Object>>;

  Value() = default;
  Value(bool value) : storage_(value) {}
  Value(int value) : storage_(static_cast<Int>(value)) {}
  Value(long value) : storage_(static_cast<Int>(value)) {}
  Value(long long value) : storage_(static_cast<Int>(value)) {}
  Value(unsigned long value) : storage_(static_cast<Int>(value)) {}
  Value(Int value) : storage_(value) {}
  Value(double value) : storage_(value) {}
  Value(MarkedText value) : storage_(std::move(value)) {}
  Value(std::string value) : storage_(MarkedText(std::move(value))) {}
  Value(std::string_view value) : Value(std::string(value)) {}
  Value(const char* value) : Value(std::string(value)) {}
  Value(std::shared_ptr<const Sequence> value) : storage_(std::move(value)) {}
  Value(std::shared_ptr<const Dict> value) : storage_(std::move(value)) {}
  Value(std::shared_ptr<Object> value) : storage_(std::move(value)) {}

  static Value undefined(std::string message);
  static Value list(std::vector<Value> items) { return sequence(SequenceKind::list, std::move(items)); }
  static Value tuple(std::vector<Value> items) { return sequence(SequenceKind::tuple, std::move(items)); }
  static Value sequence(SequenceKind kind, std::vector<Value> items);
  /// Later entries replace the value of an equal earlier key and keep its place, as Python's dict does.
  static Value dict(std::vector<std::pair<Value, Value>> entries);

  [[nodiscard]] bool is_none() const { return std::holds_alternative<None>(storage_); }
  [[nodiscard]] bool is_undefined() const { return std::holds_alternative<Undefined>(storage_); }
  [[nodiscard]] bool is_bool() const { return std::holds_alternative<bool>(storage_); }
  /// True for integers other than booleans.
  [[nodiscard]] bool is_int() const { return std::holds_alternative<Int>(storage_); }
  [[nodiscard]] bool is_float() const { return std::holds_alternative<double>(storage_); }
  [[nodiscard]] bool is_integral() const { return is_int() || is_bool(); }
  [[nodiscard]] bool is_number() const { return is_integral() || is_float(); }
  [[nodiscard]] bool is_string() const { return std::holds_alternative<MarkedText>(storage_); }
  [[nodiscard]] bool is_dict() const { return std::holds_alternative<std::shared_ptr<const Dict>>(storage_); }
  [[nodiscard]] bool is_sequence() const { return std::holds_alternative<std::shared_ptr<const Sequence>>(storage_); }
  [[nodiscard]] bool is_sequence(SequenceKind kind) const;
  [[nodiscard]] bool is_list() const { return is_sequence(SequenceKind::list); }
  [[nodiscard]] bool is_object() const { return std::holds_alternative<std::shared_ptr<Object>>(storage_); }

  [[nodiscard]] bool boolean() const { return std::get<bool>(storage_); }
  /// The integer, or a boolean as 0 or 1.
  [[nodiscard]] Int integer() const { return is_bool() ? Int{boolean()} : std::get<Int>(storage_); }
  /// Any number as a double.
  [[nodiscard]] double number() const {
    return is_float() ? std::get<double>(storage_) : static_cast<double>(integer());
  }
  [[nodiscard]] const MarkedText& text() const { return std::get<MarkedText>(storage_); }
  [[nodiscard]] const Sequence& sequence() const { return *std::get<std::shared_ptr<const Sequence>>(storage_); }
  [[nodiscard]] const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(storage_); }
  [[nodiscard]] const std::shared_ptr<const Dict>& dict_pointer() const {
    return std::get<std::shared_ptr<const Dict>>(storage_);
  }
  [[nodiscard]] Object& object() const { return *std::get<std::shared_ptr<Object>>(storage_); }
  [[nodiscard]] const std::string& undefined_message() const { return *std::get<Undefined>(storage_).message; }

  /// The object as a T, or nullptr.
  template <typename T>
  [[nodiscard]] T* as() const {
    return is_object() ? dynamic_cast<T*>(&object()) : nullptr;
  }
  [[nodiscard]] const Storage& storage() const { return storage_; }
  /// How deeply containers nest in this value.
  [[nodiscard]] std::size_t depth() const;

 private:
  Storage storage_;
};

/// Containers may nest this deeply; destruction and printing recurse over them.
constexpr std::size_t max_container_depth = 256;

struct Sequence {
  Sequence(SequenceKind sequence_kind, std::vector<Value> values);
  SequenceKind kind;
  std::vector<Value> items;
  std::size_t depth;
  bool is_group = false;          ///< a tuple of groupby, with the attributes grouper and list
  mutable bool consumed = false;  ///< a generator gives its items once
  MemoryCharge charge;
};

/// An insertion-ordered mapping with hashed look-up.
class Dict {
 public:
  Dict() = default;
  explicit Dict(std::vector<std::pair<Value, Value>> entries);
  [[nodiscard]] const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  /// The value of a key, or nullptr. Throws TemplateFailure for a key that cannot be hashed.
  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] const Value* find(const char* key) const { return find(std::string_view(key)); }
  [[nodiscard]] std::size_t depth() const { return depth_; }
  void set(Value key, Value value);

 private:
  [[nodiscard]] std::size_t position(std::size_t hash, const Value& key) const;
  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_multimap<std::size_t, std::size_t> positions_;
  std::size_t depth_ = 1;
  std::unique_ptr<MemoryCharge> charge_;
};

class Evaluator;

/// The arguments of a call, a filter or a test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  /// The arguments in the order of `names`; missing ones are nullptr. Throws for surplus or unknown ones.
  [[nodiscard]] std::vector<const Value*> bind(std::string_view function,
                                               std::initializer_list<std::string_view> names) const;
};

/// Something with attributes that may be callable: functions, macros, loops, namespaces.
class Object : public std::enable_shared_from_this<Object> {
 public:
  /// `contents_depth`: how deeply the values nest that this object keeps for good.
  explicit Object(std::size_t contents_depth = 0);
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  /// Python's name of the type, for messages.
  [[nodiscard]] virtual std::string type_name() const = 0;
  /// What printing it shows.
  [[nodiscard]] virtual std::string representation() const { return "<" + type_name() + " object>"; }
  /// The attribute, or an undefined value.
  [[nodiscard]] virtual Value attribute(std::string_view name) const;
  [[nodiscard]] virtual bool callable() const { return false; }
  virtual Value call(Evaluator& evaluator, const Arguments& arguments);
  [[nodiscard]] std::size_t depth() const { return depth_; }
  /// Drops what the object refers to, so that cycles end with the rendering.
  virtual void release_contents() {}

 private:
  std::size_t depth_;
  MemoryCharge charge_{64};
};

/// Python's name of the value's type: "str", "NoneType", "dict", ...
std::string type_name(const Value& value);
/// The name that Jinja's messages about attributes use: "'dict object'", "'None'".
std::string object_description(const Value& value);
/// Throws UndefinedError's message if the value is undefined.
void require_defined(const Value& value);

}  // namespace tensorfold::text::jinja
