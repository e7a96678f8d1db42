#include "format/safetensors_store.h"

#include <set>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/presence.h"
#include "format/json_file.h"
#include "format/safetensors_header.h"

namespace tensorfold::format {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr uint64_t kLargestIndex = 100'000'000;

/// Tensor name to file name, as the index has it. A file name that is not a plain name is refused: an index must not
/// lead out of its directory.
std::map<std::string, std::string> read_index(const std::filesystem::path& path, ProblemList& problems) {
  const nlohmann::json index = read_json_object(path, kLargestIndex, problems);
  if (!index.contains("weight_map") || !index["weight_map"].is_object()) {
    problems.add("{} has no weight_map", kIndexName);
    return {};
  }
  std::map<std::string, std::string> files;
  std::set<std::string> refused;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const std::string file_name = file.is_string() ? file.get<std::string>() : printable_json(file);
    const bool plain = file.is_string() && file_name.ends_with(".safetensors") &&
                       file_name.find_first_of("/\\") == std::string::npos && file_name.find('\0') == std::string::npos;
    if (plain) {
      files[name] = file_name;
    } else if (refused.insert(file_name).second) {
      problems.add("{}: {} is not the name of a safetensors file", kIndexName, printable(file_name));
    }
  }
  return files;
}

std::set<std::string> list_files(const std::filesystem::path& directory) {
  std::set<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") names.insert(entry->path().filename().string());
  }
  if (error) fail(ErrorKind::not_found, "cannot list {}: {}", directory.string(), error.message());
  return names;
}

/// A stretch of a file that stays open.
class FileTensor final : public TensorBytes {
 public:
  FileTensor(std::shared_ptr<const File> file, uint64_t first, uint64_t bytes)
      : file_(std::move(file)), first_(first), bytes_(bytes) {}
  void read(uint64_t offset, std::span<std::byte> out) const override {
    check(offset <= bytes_ && out.size() <= bytes_ - offset, "a read stays inside its tensor");
    file_->read(first_ + offset, out);
  }

 private:
  std::shared_ptr<const File> file_;
  uint64_t first_;
  uint64_t bytes_;
};

}  // namespace

std::unique_ptr<SafetensorsStore> SafetensorsStore::open_directory(const std::filesystem::path& directory) {
  auto store = std::make_unique<SafetensorsStore>();
  ProblemList problems;
  std::map<std::string, std::string> index;
  if (has_file(directory / kIndexName)) index = read_index(directory / kIndexName, problems);
  std::set<std::string> indexed;
  for (const auto& [name, file] : index) indexed.insert(file);
  std::set<std::string> files = list_files(directory);
  files.insert(indexed.begin(), indexed.end());
  if (files.empty() && problems.empty()) {
    fail(ErrorKind::not_found, "{} holds no *.safetensors file", directory.string());
  }
  for (const std::string& file : files) {
    try {
      store->add_part(File(directory / file), indexed.contains(file), problems);
    } catch (const Error& error) {
      problems.add("{}", error.what());
    }
  }
  store->check_index(index, problems);
  problems.throw_if_any(ErrorKind::corrupt_file, directory.string());
  return store;
}

std::unique_ptr<SafetensorsStore> SafetensorsStore::open_file(const std::filesystem::path& path) {
  auto store = std::make_unique<SafetensorsStore>();
  ProblemList problems;
  store->add_part(File(path), false, problems);
  problems.throw_if_any(ErrorKind::corrupt_file, path.parent_path().string());
  return store;
}

void SafetensorsStore::add_part(File file, bool indexed, ProblemList& problems) {
  const std::string name = file.path().filename().string();
  const size_t known_problems = problems.all().size();
  SafetensorsHeader header = read_safetensors_header(file, problems);
  if (problems.all().size() != known_problems) return;
  const auto number = static_cast<int32_t>(parts_.size());
  for (TensorInfo& tensor : header.tensors) {
    tensor.file = number;
    const auto [known, fresh] = tensors_.try_emplace(tensor.name, tensor);
    if (!fresh && known->second.file != number) {
      problems.add("tensor {} is in both {} and {}", printable(tensor.name),
                   parts_[static_cast<size_t>(known->second.file)].name, name);
    }
  }
  parts_.push_back({std::make_shared<const File>(std::move(file)), name, std::move(header.metadata), indexed});
}

void SafetensorsStore::check_index(const std::map<std::string, std::string>& index, ProblemList& problems) const {
  std::set<std::string_view> readable;
  for (const Part& part : parts_) readable.insert(part.name);
  for (const auto& [name, file] : index) {
    if (!readable.contains(file)) continue;  // said already
    const TensorInfo* tensor = find(name);
    if (tensor == nullptr || parts_[static_cast<size_t>(tensor->file)].name != file) {
      problems.add("{} places tensor {} in {}, which does not hold it", kIndexName, printable(name), printable(file));
    }
  }
}

const TensorInfo* SafetensorsStore::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<std::string> SafetensorsStore::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

void SafetensorsStore::read(const TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const {
  check(tensor.file >= 0 && static_cast<size_t>(tensor.file) < parts_.size(), "a tensor is read from its own store");
  check(offset <= tensor.bytes && out.size() <= tensor.bytes - offset, "a read stays inside its tensor");
  parts_[static_cast<size_t>(tensor.file)].file->read(tensor.offset + offset, out);
}

std::shared_ptr<const TensorBytes> SafetensorsStore::keep_open(const TensorInfo& tensor) const {
  check(tensor.file >= 0 && static_cast<size_t>(tensor.file) < parts_.size(), "a tensor is read from its own store");
  return std::make_shared<FileTensor>(parts_[static_cast<size_t>(tensor.file)].file, tensor.offset, tensor.bytes);
}

void SafetensorsStore::expect(const TensorInfo& tensor) const {
  parts_[static_cast<size_t>(tensor.file)].file->expect(tensor.offset, tensor.bytes);
}

void SafetensorsStore::release(const TensorInfo& tensor) const {
  parts_[static_cast<size_t>(tensor.file)].file->drop(tensor.offset, tensor.bytes);
}

uint64_t SafetensorsStore::tensor_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += tensor.bytes;
  return bytes;
}

}  // namespace tensorfold::format
