#include "format/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

namespace tensorfold::format {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kLongestHeader = 100'000'000;  // the limit that the format's own readers keep
constexpr size_t kMostDimensions = 16;

using Json = nlohmann::json;

/// What the header says of one tensor, before any of it is believed.
struct Claim {
  std::string name;
  std::optional<std::string> type;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

/// Takes the header apart while it is parsed: a tree of a large header would cost many times its size, and would hide
/// duplicate names. Any departure from the expected structure ends the parse with one message.
class HeaderReader {
 public:
  std::vector<Claim> claims;
  std::map<std::string, std::string> metadata;
  std::string failure;

  // The interface that nlohmann::json::sax_parse calls.
  bool null() {
    if (place_ == Place::top_value && key_ == "__metadata__") return back_to(Place::top);
    return refuse("null");
  }
  bool boolean(bool) { return refuse("a boolean"); }
  bool number_integer(Json::number_integer_t value) { return refuse(fmt::format("the number {}", value)); }
  bool number_unsigned(Json::number_unsigned_t value) {
    if (place_ != Place::numbers) return refuse(fmt::format("the number {}", value));
    if (numbers_.size() >= kMostDimensions) return refuse("a list that is too long");
    numbers_.push_back(value);
    return true;
  }
  bool number_float(Json::number_float_t, const std::string& text) { return refuse("the number " + printable(text)); }
  bool string(std::string& value) {
    if (place_ == Place::metadata_value) {
      metadata[key_] = value;
      return back_to(Place::metadata);
    }
    if (place_ == Place::tensor_value && field_ == "dtype") {
      claims.back().type = value;
      return back_to(Place::tensor);
    }
    return refuse("the string " + printable(value));
  }
  bool binary(Json::binary_t&) { return refuse("binary data"); }
  bool start_object(size_t) {
    if (place_ == Place::start) return back_to(Place::top);
    if (place_ != Place::top_value) return refuse("an object");
    if (key_ == "__metadata__") return back_to(Place::metadata);
    claims.push_back({key_, {}, {}, {}});
    return back_to(Place::tensor);
  }
  bool key(std::string& value) {
    switch (place_) {
      case Place::top:
        key_ = value;
        return back_to(Place::top_value);
      case Place::metadata:
        key_ = value;
        return back_to(Place::metadata_value);
      case Place::tensor:
        field_ = value;
        if (is_given()) return refuse("given twice");
        return back_to(Place::tensor_value);
      default:
        return refuse("a key");
    }
  }
  bool end_object() { return back_to(place_ == Place::top ? Place::end : Place::top); }
  bool start_array(size_t) {
    if (place_ != Place::tensor_value || (field_ != "shape" && field_ != "data_offsets")) return refuse("a list");
    numbers_.clear();
    return back_to(Place::numbers);
  }
  bool end_array() {
    (field_ == "shape" ? claims.back().shape : claims.back().offsets) = numbers_;
    return back_to(Place::tensor);
  }
  bool parse_error(size_t position, const std::string&, const Json::exception&) {
    failure = fmt::format("the header is not valid JSON at byte {}", position);
    return false;
  }

 private:
  /// Whether the current entry has this field already.
  [[nodiscard]] bool is_given() const {
    const Claim& claim = claims.back();
    return (field_ == "dtype" && claim.type) || (field_ == "shape" && claim.shape) ||
           (field_ == "data_offsets" && claim.offsets);
  }

  enum class Place { start, top, top_value, metadata, metadata_value, tensor, tensor_value, numbers, end };

  bool back_to(Place place) {
    place_ = place;
    return true;
  }
  bool refuse(const std::string& what) {
    switch (place_) {
      case Place::tensor:
      case Place::tensor_value:
      case Place::numbers:
        failure = fmt::format("tensor {}: {} cannot be {}", printable(key_), printable(field_), what);
        break;
      case Place::top_value:
      case Place::metadata_value:
        failure = fmt::format("the header's {} cannot be {}", printable(key_), what);
        break;
      default:
        failure = fmt::format("the header must be a JSON object, not {}", what);
    }
    return false;
  }

  Place place_ = Place::start;
  std::string key_;
  std::string field_;
  std::vector<uint64_t> numbers_;
};

/// Bytes of a tensor, or nothing where the product overflows.
std::optional<uint64_t> bytes_of(DataType type, const std::vector<uint64_t>& shape) {
  auto bytes = static_cast<uint64_t>(size_of(type));
  for (const uint64_t size : shape) {
    if (std::cmp_greater(size, INT64_MAX) || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

/// The tensor that a claim describes, if all of it holds.
std::optional<TensorInfo> believe(const Claim& claim, uint64_t data_start, uint64_t file_bytes, std::string_view file,
                                  ProblemList& problems) {
  const std::string name = printable(claim.name);
  if (!claim.type || !claim.shape || !claim.offsets || claim.offsets->size() != 2) {
    problems.add("{}: tensor {} needs dtype, shape and two data_offsets", file, name);
    return std::nullopt;
  }
  const std::optional<DataType> type = parse_data_type(*claim.type);
  if (!type) {
    problems.add("{}: tensor {} has the unknown dtype {}", file, name, printable(*claim.type));
    return std::nullopt;
  }
  const std::optional<uint64_t> bytes = bytes_of(*type, *claim.shape);
  const uint64_t begin = (*claim.offsets)[0];
  const uint64_t end = (*claim.offsets)[1];
  if (!bytes) {
    problems.add("{}: tensor {} has an impossibly large shape", file, name);
  } else if (end < begin || end - begin != *bytes) {
    problems.add("{}: tensor {} spans bytes {} to {} but its shape needs {} bytes", file, name, begin, end, *bytes);
  } else if (end > file_bytes - data_start) {
    problems.add("{}: tensor {} ends {} bytes past the end of the file (truncated?)", file, name,
                 end - (file_bytes - data_start));
  } else {
    TensorInfo info{claim.name, *type, {}, *bytes, -1, data_start + begin};
    for (const uint64_t size : *claim.shape) info.shape.push_back(static_cast<int64_t>(size));
    return info;
  }
  return std::nullopt;
}

void check_apart(const std::vector<TensorInfo>& tensors, std::string_view file, ProblemList& problems) {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.bytes > 0) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->offset < order[i - 1]->offset + order[i - 1]->bytes) {
      problems.add("{}: tensors {} and {} overlap", file, printable(order[i - 1]->name), printable(order[i]->name));
    }
  }
}

/// The format leaves no byte to nobody, so that a header of the wrong length cannot shift all data unseen.
void check_no_holes(const std::vector<TensorInfo>& tensors, uint64_t data_start, uint64_t file_bytes,
                    std::string_view file, ProblemList& problems) {
  std::vector<std::pair<uint64_t, uint64_t>> spans;  // offset and bytes
  for (const TensorInfo& tensor : tensors) spans.emplace_back(tensor.offset, tensor.bytes);
  std::sort(spans.begin(), spans.end());
  uint64_t at = data_start;
  for (const auto& [offset, bytes] : spans) {
    if (offset > at) {
      problems.add("{}: bytes {} to {} belong to no tensor (a damaged header?)", file, at, offset);
      return;
    }
    at = std::max(at, offset + bytes);
  }
  if (at < file_bytes)
    problems.add("{}: {} bytes behind the last tensor belong to none (a damaged header?)", file, file_bytes - at);
}

void check_unique(const std::vector<Claim>& claims, std::string_view file, ProblemList& problems) {
  std::vector<std::string_view> names;
  for (const Claim& claim : claims) names.push_back(claim.name);
  std::sort(names.begin(), names.end());
  for (size_t i = 1; i < names.size(); ++i) {
    if (names[i] == names[i - 1]) problems.add("{}: tensor {} is described twice", file, printable(names[i]));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_start, uint64_t file_bytes,
                                           std::string_view file_name, ProblemList& problems) {
  check(data_start <= file_bytes, "the data of a safetensors file starts inside it");
  const size_t known = problems.all().size();
  HeaderReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) {
    problems.add("{}: {}", file_name, reader.failure);
    return {};
  }
  check_unique(reader.claims, file_name, problems);
  SafetensorsHeader header;
  for (const Claim& claim : reader.claims) {
    std::optional<TensorInfo> tensor = believe(claim, data_start, file_bytes, file_name, problems);
    if (tensor) header.tensors.push_back(std::move(*tensor));
  }
  check_apart(header.tensors, file_name, problems);
  // What was not believed leaves holes of its own.
  if (problems.all().size() == known) check_no_holes(header.tensors, data_start, file_bytes, file_name, problems);
  header.metadata = std::move(reader.metadata);
  return header;
}

SafetensorsHeader read_safetensors_header(const File& file, ProblemList& problems) {
  const std::string name = printable(file.path().filename().string());
  if (file.size() < kLengthBytes) {
    problems.add("{}: {} bytes are too few for a safetensors file", name, file.size());
    return {};
  }
  uint64_t length = 0;
  static_assert(std::endian::native == std::endian::little, "checkpoints are read as they lie");
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length == 0 || length >= kLongestHeader || length > file.size() - kLengthBytes) {
    problems.add("{}: a header of {} bytes cannot be in a file of {} bytes (truncated, or not a safetensors file)",
                 name, length, file.size());
    return {};
  }
  std::string text(length, '\0');
  file.read(kLengthBytes, std::as_writable_bytes(std::span<char>(text.data(), text.size())));
  return parse_safetensors_header(text, kLengthBytes + length, file.size(), name, problems);
}

}  // namespace tensorfold::format
