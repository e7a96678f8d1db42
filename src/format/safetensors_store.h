// A checkpoint on disk: one or more safetensors files read by position.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "format/problem_list.h"
#include "format/tensor_store.h"

namespace tensorfold::format {

class SafetensorsStore : public TensorStore {
 public:
  /// One file of the checkpoint.
  struct Part {
    std::shared_ptr<const File> file;  ///< shared with tensors that are kept open
    std::string name;
    std::map<std::string, std::string> metadata;  ///< the header's __metadata__
    bool indexed = false;                         ///< named by model.safetensors.index.json
  };

  /// Every *.safetensors file of a directory: the shards that model.safetensors.index.json names, and side files beside
  /// them (mtp-4bit.safetensors). Reads and checks all headers first. Throws Error(not_found) where there is none, and
  /// Error(corrupt_file) that lists everything wrong with any of them in one line.
  static std::unique_ptr<SafetensorsStore> open_directory(const std::filesystem::path& directory);
  /// One file alone.
  static std::unique_ptr<SafetensorsStore> open_file(const std::filesystem::path& path);

  [[nodiscard]] const TensorInfo* find(std::string_view name) const override;
  [[nodiscard]] std::vector<std::string> names() const override;
  void read(const TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const override;
  [[nodiscard]] std::shared_ptr<const TensorBytes> keep_open(const TensorInfo& tensor) const override;
  void expect(const TensorInfo& tensor) const override;
  void release(const TensorInfo& tensor) const override;

  /// Files in name order; TensorInfo::file is an index into them.
  [[nodiscard]] std::span<const Part> parts() const { return parts_; }
  /// Bytes of all tensors.
  [[nodiscard]] uint64_t tensor_bytes() const;

 private:
  void add_part(File file, bool indexed, ProblemList& problems);
  void check_index(const std::map<std::string, std::string>& index, ProblemList& problems) const;

  std::vector<Part> parts_;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
};

}  // namespace tensorfold::format
