// verify-exact's restarted process: requests go to a child of this program through a file, answers come back the same
// way.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/verify_exact.h"

namespace tensorfold::cli {

/// Throw Error(io) and Error(corrupt_file).
void write_serving(const std::filesystem::path& path, const engine::VerifyServing& serving);
engine::VerifyServing read_serving(const std::filesystem::path& path);
void write_answers(const std::filesystem::path& path, const std::vector<engine::VerifyAnswer>& answers);
std::vector<engine::VerifyAnswer> read_answers(const std::filesystem::path& path);

/// Runs this program with `arguments` and waits; its output is thrown away. Throws Error(io) when it cannot be started
/// or does not end with 0.
void run_this_program(const std::vector<std::string>& arguments);

}  // namespace tensorfold::cli
