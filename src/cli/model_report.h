// What `info` says of a model, from its configuration alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tensorfold::cli {

struct ModelReport {
  /// Name and text of each line, in order.
  std::vector<std::pair<std::string, std::string>> lines;
  bool served = false;
};

/// Reports on the model whose descriptions lie in `directory` and whom the user calls `model`. `context`: tokens of the
/// conversation whose memory is told; 0: a few usual ones. A model that no family here serves is described as far as
/// its config.json goes, with the reason. Throws Error when there is no config.json or it is not JSON.
ModelReport report_model(const std::string& model, const std::filesystem::path& directory, int32_t context);

/// The lines side by side, wrapped at 80 columns.
std::string report_text(const ModelReport& report);

}  // namespace tensorfold::cli
