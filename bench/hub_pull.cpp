// A pull against curl over one slow link: bench_hub_pull [MEGABYTES [MB/s [ROUNDS [FOLDER]]]] (defaults 1000, 250, 3,
// the temporary folder). Serves a model of two files on 127.0.0.1 through one rate limit, and fetches it in turns with
// `curl` (one connection a file, no checksum) and with our pull (pieces, SHA-256, fdatasync), each in a process of its
// own; which goes first changes from round to round. The floor is the link: size / rate. Prints seconds, the share of
// the floor, the processor seconds of each (which a busy machine hardly changes), the pull's largest memory, and the
// median of the rounds' ratios.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "hub/pull.h"
#include "hub/test_hub.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

struct Cost {
  double seconds = 0;
  double processor = 0;  ///< user and system
};

/// Runs a program to its end.
Cost run(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  int status = 0;
  rusage used{};
  ::wait4(child, &status, 0, &used);
  if (status != 0) fail(ErrorKind::internal, "{} failed", words[0]);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
          seconds(used.ru_utime) + seconds(used.ru_stime)};
}

/// The largest resident memory of this process so far, as the kernel prints it ("   12345 kB").
std::string peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return line.substr(6);
  return " unknown";
}

int pull_once(const std::string& endpoint, const fs::path& cache) {
  hub::Settings settings;
  settings.endpoint = endpoint;
  hub::SilentProgress progress;
  hub::pull(hub::Client(settings), hub::Cache(cache), {"ORG", "Model", ""}, {}, progress, {});
  std::ofstream(cache.string() + "-memory") << peak_memory();
  return 0;
}

std::string noise(size_t size) {
  std::mt19937_64 random(7);
  std::string bytes(size / 8 * 8, '\0');
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = random();
    std::copy_n(reinterpret_cast<const char*>(&word), 8, bytes.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return bytes;
}

void compare(size_t megabytes, double rate, int rounds, const fs::path& folder) {
  testing::TestHub hub;
  testing::HubRepo model;
  const testing::HubFile first = testing::lfs_file(noise(megabytes * 500'000));
  const testing::HubFile second = testing::lfs_file(noise(megabytes * 500'000 - 8));
  model.revisions["main"] = testing::commit_of('a');
  model.commits[testing::commit_of('a')] = {
      {"config.json", testing::plain_file("{}")}, {"model-1.safetensors", first}, {"model-2.safetensors", second}};
  hub.set_repo("ORG/Model", model);
  hub.set_bytes_per_second(static_cast<uint64_t>(rate * 1e6));
  const double floor = static_cast<double>(megabytes) / rate;
  fmt::print("{} MB at {:.0f} MB/s: the link takes {:.2f} s\n", megabytes, rate, floor);
  const std::string base = hub.second_endpoint() + "/signed/";
  const auto curl_once = [&] {
    const Cost cost =
        run({"curl", "-s", "-o", folder / "curl-1", base + first.etag, "-o", folder / "curl-2", base + second.etag});
    fs::remove(folder / "curl-1");
    fs::remove(folder / "curl-2");
    return cost;
  };
  const auto pull_cache = [&] {
    const Cost cost = run({"/proc/self/exe", "--pull", hub.endpoint(), folder / "cache"});
    fs::remove_all(folder / "cache");
    return cost;
  };
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    Cost curl;
    Cost pull;
    if (round % 2 == 0) curl = curl_once();
    pull = pull_cache();
    if (round % 2 == 1) curl = curl_once();
    std::string memory;
    std::getline(std::ifstream(folder / "cache-memory"), memory);
    fmt::print(
        "  curl {:6.2f} s ({:3.0f} %), {:.2f} s of processor   pull {:6.2f} s ({:3.0f} %), {:.2f} s, most memory{}\n",
        curl.seconds, 100 * floor / curl.seconds, curl.processor, pull.seconds, 100 * floor / pull.seconds,
        pull.processor, memory);
    ratios.push_back(curl.seconds / pull.seconds);
  }
  std::nth_element(ratios.begin(), ratios.begin() + rounds / 2, ratios.end());
  fmt::print("pull reaches {:.0f} % of curl's rate (median)\n", 100 * ratios[static_cast<size_t>(rounds / 2)]);
}

}  // namespace
}  // namespace tensorfold

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 3 && words[0] == "--pull") return tensorfold::pull_once(words[1], words[2]);
    const fs::path base = words.size() > 3 ? fs::path(words[3]) : fs::temp_directory_path();
    const fs::path folder = base / fmt::format("tensorfold-bench-{}", ::getpid());
    fs::create_directories(folder);
    tensorfold::compare(words.empty() ? 1000 : std::stoul(words[0]), words.size() > 1 ? std::stod(words[1]) : 250,
                        words.size() > 2 ? std::stoi(words[2]) : 3, folder);
    fs::remove_all(folder);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_hub_pull: {}\n", error.what());
    return 1;
  }
  return 0;
}
