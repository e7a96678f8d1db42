// Reading small JSON files that came from strangers.
#pragma once

#include <cstdint>
#include <filesystem>

#include <nlohmann/json_fwd.hpp>

#include "format/problem_list.h"

namespace tensorfold::format {

/// The object in a file of at most `most_bytes`. What is not valid JSON, not an object, or nested more than 64 deep
/// (copying, comparing and printing recurse) is a problem, and an empty object comes back. Throws as File does.
nlohmann::json read_json_object(const std::filesystem::path& path, uint64_t most_bytes, ProblemList& problems);

}  // namespace tensorfold::format
