// Pulls in processes of their own: killed in the middle, and two at once.
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hub/hub_fixture.h"

namespace tensorfold::hub {
namespace {

using testing::commit_of;
using testing::HubTest;

/// What a child runs: this program with one test selected, told what to do by its environment.
TEST(PullChild, PullsWhatItsEnvironmentNames) {
  const char* endpoint = std::getenv("TENSORFOLD_TEST_ENDPOINT");
  if (endpoint == nullptr) GTEST_SKIP() << "runs as a child of the tests below";
  Settings settings;
  settings.endpoint = endpoint;
  settings.cache_root = std::getenv("TENSORFOLD_TEST_CACHE");
  PullOptions options;
  options.piece_bytes = 64u << 10;
  options.connections = 2;
  testing::RecordingProgress progress;
  RetryPolicy retry;
  retry.first_delay = std::chrono::milliseconds(10);
  pull(Client(settings, retry), Cache(settings.cache_root), {"ORG", "Model", ""}, options, progress, {});
  EXPECT_EQ(progress.done, static_cast<int64_t>(progress.begun_total));
}

class PullProcess : public HubTest {
 protected:
  pid_t start() {
    const std::string endpoint = "TENSORFOLD_TEST_ENDPOINT=" + hub_.endpoint();
    const std::string folder = "TENSORFOLD_TEST_CACHE=" + settings_.cache_root.string();
    std::vector<char*> environment = {const_cast<char*>(endpoint.c_str()), const_cast<char*>(folder.c_str())};
    for (char** variable = ::environ; *variable != nullptr; ++variable) environment.push_back(*variable);
    environment.push_back(nullptr);
    const char* const arguments[] = {"test_hub", "--gtest_filter=PullChild.*", "--gtest_brief=1", nullptr};
    const pid_t child = ::fork();
    if (child == 0) {
      ::execve("/proc/self/exe", const_cast<char* const*>(arguments), environment.data());
      ::_exit(127);
    }
    return child;
  }

  static int wait_for(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  }

  void wait_for_bytes(uint64_t bytes) const {
    while (hub_.body_bytes_sent() < bytes) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  uint64_t weight_bytes() const {
    uint64_t sum = 0;
    for (const auto& [name, file] : files_) sum += name.ends_with(".safetensors") ? file.content->size() : 0;
    return sum;
  }
};

TEST_F(PullProcess, AKilledPullGoesOnAndLosesAlmostNothing) {
  hub_.set_bytes_per_second(1'000'000);
  uint64_t killed_at = 0;
  for (int kills = 1; kills <= 4; ++kills) {
    const uint64_t before = hub_.body_bytes_sent();
    const pid_t child = start();
    wait_for_bytes(before + 90'000);
    ::kill(child, SIGKILL);
    ASSERT_TRUE(WIFSIGNALED(wait_for(child)));
    EXPECT_FALSE(cache().read_ref(repo()));
    const auto snapshot = cache().locate(repo());
    EXPECT_TRUE(!snapshot || !Cache::missing_files(*snapshot).empty());
    killed_at = hub_.body_bytes_sent();
  }
  hub_.set_bytes_per_second(0);
  const PullResult result = pull();
  expect_complete(result.directory);
  // A kill loses what was in sockets: per connection at most what the loopback buffers, never a whole file.
  EXPECT_GT(progress_.begun_present, killed_at / 4);
  EXPECT_EQ(progress_.done, static_cast<int64_t>(progress_.begun_total));
}

TEST_F(PullProcess, AKilledUpdateLeavesTheOldRevisionInUse) {
  const PullResult old = pull();
  hub_.change_repo("ORG/Model", [&](testing::HubRepo& model) {
    model.commits[commit_of('b')] = model.commits[commit_of('a')];
    model.commits[commit_of('b')]["model-00001-of-00002.safetensors"] =
        testing::lfs_file(testing::random_bytes(4 * kPiece, 70));
    model.revisions["main"] = commit_of('b');
  });
  hub_.set_bytes_per_second(500'000);
  const uint64_t before = hub_.body_bytes_sent();
  const pid_t child = start();
  wait_for_bytes(before + 90'000);
  ::kill(child, SIGKILL);
  wait_for(child);
  settings_.offline = true;
  EXPECT_EQ(resolve_model(client(), cache(), "ORG/Model", options_, progress_, {}), old.directory);
  expect_complete(old.directory);
}

TEST_F(PullProcess, TwoPullsAtOnceShareTheWork) {
  hub_.set_bytes_per_second(1'500'000);
  const pid_t first = start();
  const pid_t second = start();
  EXPECT_EQ(wait_for(first), 0);
  EXPECT_EQ(wait_for(second), 0);
  const auto snapshot = cache().locate(repo());
  ASSERT_TRUE(snapshot);
  expect_complete(snapshot->directory);
  uint64_t all = 0;
  for (const auto& [name, file] : files_) all += file.content->size();
  // Each process asks for the list; no file's bytes travel twice.
  EXPECT_LT(hub_.body_bytes_sent(), all + 50'000);
}

TEST_F(PullProcess, AnInterruptedPullOfAnotherProcessIsTakenOver) {
  hub_.set_bytes_per_second(400'000);
  const pid_t child = start();
  wait_for_bytes(100'000);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ::kill(child, SIGKILL);
    wait_for(child);
    hub_.set_bytes_per_second(0);
  });
  const PullResult result = pull();
  killer.join();
  expect_complete(result.directory);
}

}  // namespace
}  // namespace tensorfold::hub
