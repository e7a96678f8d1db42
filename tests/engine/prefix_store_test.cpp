// Kept prefixes in memory and on disk: the longest wins, bytes come back as they were, damaged files never do.
#include "engine/prefix_store.h"

#include <atomic>
#include <csignal>
#include <fstream>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/digest.h"

namespace tensorfold::engine {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

backend::CacheLayout layout() {
  return {.entries = {backend::PagedEntry{.name = "kv", .width = 4},
                      backend::StateEntry{
                          .name = "delta",
                          .shape = backend::GatedDeltaShape{
                              .key_heads = 1, .value_heads = 1, .key_dim = 128, .value_dim = 128, .kernel = 4}}}};
}

/// A pool whose pages and states hold bytes that follow from the tokens, so that a mix-up shows.
class KeptPrefixes : public ::testing::Test {
 protected:
  static constexpr int32_t page_tokens = 8;

  KeptPrefixes()
      : backend_(backend::make_cpu_backend(1)),
        pool_(*backend_, layout(), {},
              {.page_tokens = page_tokens, .pages = 1200, .state_slots = 16, .window_rows = 8}) {
    std::random_device device;
    directory_ = fs::temp_directory_path() / fmt::format("tensorfold-prefix-{:08x}{:08x}", device(), device());
  }
  ~KeptPrefixes() override {
    std::error_code error;
    fs::remove_all(directory_, error);
  }

  static std::vector<int32_t> tokens_of(uint64_t seed, int32_t count) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(mix_bits(seed * 977 + i + 1) % 1000));
    return tokens;
  }
  static Bytes content(uint64_t name, size_t size) {
    Bytes bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(mix_bits(name + i) & 0x3F);
    return bytes;
  }
  [[nodiscard]] Bytes page_content(std::span<const int32_t> tokens, size_t j) const {
    const size_t end = std::min(tokens.size(), (j + 1) * page_tokens);
    return content(prefix_names(tokens.first(end)).back(), static_cast<size_t>(pool_.page_bytes()));
  }
  [[nodiscard]] Bytes state_content(std::span<const int32_t> tokens) const {
    return content(prefix_names(tokens).back() + 1, static_cast<size_t>(pool_.state_bytes()));
  }

  /// A lane as if `tokens` had been fed.
  CacheLane fed(std::span<const int32_t> tokens) {
    CacheLane lane;
    EXPECT_TRUE(pool_.open(lane) && pool_.reserve(lane, static_cast<int32_t>(tokens.size())));
    lane.committed = static_cast<int32_t>(tokens.size());
    for (size_t j = 0; j < lane.pages.size(); ++j) pool_.write_page(lane.pages[j], page_content(tokens, j));
    pool_.write_state(lane.state_slot, state_content(tokens));
    return lane;
  }
  void keep(PrefixStore& store, std::span<const int32_t> tokens, KeepReason reason = KeepReason::reply_end) {
    CacheLane lane = fed(tokens);
    store.keep(tokens, lane, reason);
    pool_.close(lane);
  }
  /// Resumes, checks every byte, gives back the length.
  int32_t resume(PrefixStore& store, std::span<const int32_t> tokens) {
    CacheLane lane;
    EXPECT_TRUE(pool_.open(lane));
    while (store.awaits_disk(tokens)) usleep(200);
    const int32_t length = store.resume(tokens, lane);
    EXPECT_EQ(length, lane.committed);
    const auto kept = tokens.first(static_cast<size_t>(length));
    if (length > 0) {
      Bytes state(static_cast<size_t>(pool_.state_bytes()));
      pool_.read_state(lane.state_slot, state);
      EXPECT_EQ(state, state_content(kept));
      EXPECT_EQ(static_cast<int32_t>(lane.pages.size()), pool_.pages_for(length));
      for (size_t j = 0; j < lane.pages.size(); ++j) {
        Bytes page(static_cast<size_t>(pool_.page_bytes()));
        pool_.read_page(lane.pages[j], page);
        EXPECT_EQ(page, page_content(kept, j)) << "page " << j;
      }
    }
    pool_.close(lane);
    return length;
  }
  [[nodiscard]] SnapshotFilesOptions file_options(uint64_t bytes = 1 << 30) {
    return {.directory = directory_,
            .most_bytes = bytes,
            .identity = "weights|arithmetic",
            .page_tokens = page_tokens,
            .page_bytes = static_cast<uint64_t>(pool_.page_bytes()),
            .state_bytes = static_cast<uint64_t>(pool_.state_bytes()),
            .log = [this](const std::string& line) {
              const std::lock_guard lock(log_mutex_);
              log_.push_back(line);
            }};
  }
  [[nodiscard]] std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& file : fs::recursive_directory_iterator(directory_)) {
      if (file.is_regular_file()) found.push_back(file.path());
    }
    return found;
  }

  std::unique_ptr<backend::Backend> backend_;
  CachePool pool_;
  fs::path directory_;
  std::mutex log_mutex_;
  std::vector<std::string> log_;
};

TEST_F(KeptPrefixes, TheLongestPrefixThatLeavesATokenWins) {
  PrefixStore store(pool_, {}, nullptr);
  const auto tokens = tokens_of(1, 900);
  const auto all = std::span<const int32_t>(tokens);
  EXPECT_EQ(resume(store, all), 0);
  keep(store, all.first(300));
  keep(store, all.first(613));
  EXPECT_EQ(resume(store, all), 613);
  EXPECT_EQ(resume(store, all.first(614)), 613);
  EXPECT_EQ(resume(store, all.first(613)), 300);
  auto other = tokens;
  other[450] = 1001;
  EXPECT_EQ(resume(store, other), 300);
  other[0] = 1001;
  EXPECT_EQ(resume(store, other), 0);
}

TEST_F(KeptPrefixes, PagesAreSharedAndFreedWithTheLast) {
  const int32_t free_before = pool_.free_pages();
  PrefixStore store(pool_, {}, nullptr);
  const auto tokens = tokens_of(2, 640);
  const auto all = std::span<const int32_t>(tokens);
  keep(store, all.first(320));
  keep(store, all);
  EXPECT_EQ(free_before - pool_.free_pages(), 640 / page_tokens);
  store.clear();
  EXPECT_EQ(pool_.free_pages(), free_before);
  EXPECT_EQ(store.snapshots(), 0U);
}

TEST_F(KeptPrefixes, AWriterBehindASharedPartialPageGetsItsOwn) {
  PrefixStore store(pool_, {}, nullptr);
  const auto tokens = tokens_of(3, 300);
  keep(store, tokens);  // 300 = 37 pages and a half
  auto longer = tokens;
  longer.push_back(7);
  CacheLane lane;
  ASSERT_TRUE(pool_.open(lane));
  ASSERT_EQ(store.resume(longer, lane), 300);
  const int32_t shared = lane.pages.back();
  ASSERT_TRUE(pool_.reserve(lane, 301));
  EXPECT_NE(lane.pages.back(), shared);
  EXPECT_EQ(pool_.pages_copied(), 1U);
  Bytes page(static_cast<size_t>(pool_.page_bytes()));
  pool_.read_page(lane.pages.back(), page);
  EXPECT_EQ(page, page_content(tokens, lane.pages.size() - 1));
  pool_.close(lane);
}

TEST_F(KeptPrefixes, StatesOfAConversationAreFewAndApart) {
  PrefixStore store(pool_, {.device_slots = 12}, nullptr);
  const auto tokens = tokens_of(4, 2600);
  const auto all = std::span<const int32_t>(tokens);
  keep(store, all.first(280), KeepReason::system_block);
  for (size_t length = 300; length <= 2500; length += 100) keep(store, all.first(length));
  EXPECT_LE(store.snapshots(), static_cast<size_t>(most_states_a_conversation));
  EXPECT_EQ(resume(store, all), 2500);
  EXPECT_EQ(resume(store, all.first(290)), 280);
}

TEST_F(KeptPrefixes, LeastRecentlyUsedGoesFirstAndSystemBlocksLast) {
  PrefixStore store(pool_, {.device_slots = 3}, nullptr);
  std::vector<std::vector<int32_t>> tokens;
  for (uint64_t i = 0; i < 4; ++i) tokens.push_back(tokens_of(10 + i, 260));
  const auto extended = [&](size_t i) {
    auto longer = tokens[i];
    longer.push_back(1);
    return longer;
  };
  keep(store, tokens[0], KeepReason::system_block);
  keep(store, tokens[1]);
  keep(store, tokens[2]);
  EXPECT_EQ(resume(store, extended(1)), 260);
  keep(store, tokens[3]);  // 2 is the least recently used
  EXPECT_EQ(resume(store, extended(2)), 0);
  EXPECT_EQ(resume(store, extended(0)), 260);
  EXPECT_EQ(resume(store, extended(1)), 260);
  EXPECT_EQ(resume(store, extended(3)), 260);
  EXPECT_TRUE(store.make_room(pool_.size().pages));
  EXPECT_EQ(store.snapshots(), 0U);
  EXPECT_FALSE(store.make_room(pool_.size().pages + 1));
}

TEST_F(KeptPrefixes, HostTierKeepsWhatTheDeviceGivesUpWithinItsBudget) {
  const auto each = static_cast<uint64_t>(pool_.state_bytes() + 33 * pool_.page_bytes());
  PrefixStore store(pool_, {.device_slots = 2, .host_bytes = 2 * each}, nullptr);
  std::vector<std::vector<int32_t>> tokens;
  for (uint64_t i = 0; i < 6; ++i) {
    tokens.push_back(tokens_of(20 + i, 261));
    keep(store, std::span<const int32_t>(tokens.back()).first(260));
  }
  EXPECT_LE(store.host_bytes(), 2 * each);
  EXPECT_EQ(store.snapshots(), 4U);
  EXPECT_EQ(resume(store, tokens[0]), 0);
  EXPECT_EQ(resume(store, tokens[2]), 260);  // from the host
  EXPECT_EQ(store.totals().from_host, 1U);
  EXPECT_EQ(resume(store, tokens[5]), 260);
  EXPECT_LE(store.host_bytes(), 2 * each);
}

TEST_F(KeptPrefixes, SurviveARestart) {
  const auto tokens = tokens_of(30, 1400);
  const auto all = std::span<const int32_t>(tokens);
  {
    SnapshotFiles files(file_options());
    PrefixStore store(pool_, {}, &files);
    keep(store, all.first(275), KeepReason::system_block);
    keep(store, all.first(700));
    keep(store, all.first(1391));
    files.flush();
    EXPECT_EQ(this->files().size(), 3U);
  }
  SnapshotFiles files(file_options());
  files.flush();
  PrefixStore store(pool_, {}, &files);
  EXPECT_EQ(resume(store, all), 1391);
  EXPECT_EQ(resume(store, all.first(1000)), 700);
  EXPECT_EQ(resume(store, all.first(300)), 275);
  EXPECT_EQ(store.totals().from_disk, 3U);
  EXPECT_EQ(log_, std::vector<std::string>{});
}

TEST_F(KeptPrefixes, ReadingFromDiskHoldsNobody) {
  const auto tokens = tokens_of(33, 700);
  {
    SnapshotFiles files(file_options());
    PrefixStore store(pool_, {}, &files);
    keep(store, std::span<const int32_t>(tokens).first(600));
  }
  std::atomic<int> fetched = 0;
  SnapshotFilesOptions options = file_options();
  options.on_fetched = [&] { ++fetched; };
  SnapshotFiles files(options);
  files.flush();
  PrefixStore store(pool_, {}, &files);
  const auto resume_now = [&] {
    CacheLane lane;
    EXPECT_TRUE(pool_.open(lane));
    const int32_t length = store.resume(tokens, lane);
    pool_.close(lane);
    return length;
  };
  // Whoever does not wait goes on with what memory holds.
  EXPECT_EQ(resume_now(), 0);
  EXPECT_FALSE(store.awaits_disk(tokens_of(34, 700)));
  EXPECT_TRUE(store.awaits_disk(tokens));
  while (fetched == 0) usleep(200);
  EXPECT_FALSE(store.awaits_disk(tokens));
  EXPECT_EQ(resume(store, tokens), 600);
  EXPECT_EQ(fetched, 1);
}

TEST_F(KeptPrefixes, AFileHoldsOnlyWhatTheOneBelowItDoesNot) {
  const auto tokens = tokens_of(31, 1600);
  const auto all = std::span<const int32_t>(tokens);
  SnapshotFiles files(file_options());
  PrefixStore store(pool_, {}, &files);
  keep(store, all.first(800));
  keep(store, all.first(1600));
  files.flush();
  uint64_t bytes = 0;
  for (const fs::path& path : this->files()) bytes += fs::file_size(path);
  const auto content_bytes = static_cast<uint64_t>(2 * pool_.state_bytes() + 200 * pool_.page_bytes());
  EXPECT_GE(bytes, content_bytes);
  EXPECT_LT(bytes, content_bytes + 40000);
}

TEST_F(KeptPrefixes, DamagedForeignAndHalfWrittenFilesAreSkippedWithALine) {
  const auto tokens = tokens_of(32, 601);
  const auto all = std::span<const int32_t>(tokens);
  {
    SnapshotFiles files(file_options());
    PrefixStore store(pool_, {}, &files);
    keep(store, all.first(600));
  }
  ASSERT_EQ(files().size(), 1U);
  const fs::path path = files()[0];
  std::ifstream in(path, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  const auto resumed_with = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    SnapshotFilesOptions options = file_options();
    log_.clear();
    SnapshotFiles reading(std::move(options));
    reading.flush();
    PrefixStore store(pool_, {}, &reading);
    return resume(store, all);
  };
  ASSERT_EQ(resumed_with(good), 600);
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 60; ++trial) {
    std::string bad = good;
    if (trial % 3 == 0) {
      bad.resize(random() % good.size());
    } else {
      const size_t at = trial % 3 == 1 ? random() % 2000 : random() % good.size();
      bad[at] = static_cast<char>(bad[at] ^ static_cast<char>(1 + random() % 255));
    }
    EXPECT_EQ(resumed_with(bad), 0) << "trial " << trial;
    EXPECT_EQ(log_.size(), 1U) << "trial " << trial;
  }
  // Another identity inside the same folder.
  std::string foreign = good;
  const size_t at = foreign.find("weights|arithmetic");
  ASSERT_NE(at, std::string::npos);
  foreign.replace(at, 7, "WEIGHTS");
  EXPECT_EQ(resumed_with(foreign), 0);
  EXPECT_EQ(log_.size(), 1U);
  // Half written: never looked at, and cleaned up.
  std::error_code error;
  fs::remove(path, error);
  std::ofstream(path.string() + ".partial") << good.substr(0, 100);
  SnapshotFiles reading(file_options());
  reading.flush();
  EXPECT_TRUE(files().empty());
}

TEST_F(KeptPrefixes, TheDiskBudgetDropsTheLeastRecentlyUsed) {
  const auto each = static_cast<uint64_t>(pool_.state_bytes() + 35 * pool_.page_bytes()) + 8000;
  std::vector<std::vector<int32_t>> tokens;
  {
    SnapshotFiles files(file_options(3 * each));
    PrefixStore store(pool_, {}, &files);
    for (uint64_t i = 0; i < 5; ++i) {
      tokens.push_back(tokens_of(40 + i, 281));
      keep(store, std::span<const int32_t>(tokens.back()).first(280));
      files.flush();
    }
    EXPECT_LE(this->files().size(), 3U);
  }
  SnapshotFiles files(file_options(3 * each));
  files.flush();
  PrefixStore store(pool_, {}, &files);
  EXPECT_EQ(resume(store, tokens[0]), 0);
  EXPECT_EQ(resume(store, tokens[4]), 280);
}

TEST_F(KeptPrefixes, ANewerEndOfAConversationTakesTheOlderOnesPlaceOnDisk) {
  const auto tokens = tokens_of(50, 700);
  const auto all = std::span<const int32_t>(tokens);
  {
    SnapshotFiles files(file_options());
    PrefixStore store(pool_, {}, &files);
    for (size_t length = 300; length <= 540; length += 40) {
      keep(store, all.first(length));
      files.flush();
    }
    EXPECT_LE(this->files().size(), 3U);
  }
  SnapshotFiles files(file_options());
  files.flush();
  PrefixStore store(pool_, {}, &files);
  EXPECT_EQ(resume(store, all), 540);
}

TEST_F(KeptPrefixes, AProcessKilledAtAnyMomentLeavesWholeFilesOrNone) {
  // Snapshot n: 40 tokens more than snapshot n - 1 of the same conversation, on whose file it builds.
  const auto tokens = tokens_of(60, 40 * 60);
  const auto image_of = [&](int32_t n) {
    const auto prefix = std::span<const int32_t>(tokens).first(static_cast<size_t>(40 * n));
    SnapshotImage image{.name = prefix_names(prefix).back(),
                        .length = 40 * n,
                        .parent = n == 1 ? 0 : prefix_names(prefix.first(prefix.size() - 40)).back(),
                        .first_page = 5 * (n - 1),
                        .pinned = false,
                        .tokens = std::vector<int32_t>(prefix.end() - 40, prefix.end()),
                        .state = std::make_shared<const Bytes>(state_content(prefix)),
                        .pages = {}};
    for (size_t j = 5 * static_cast<size_t>(n - 1); j < 5 * static_cast<size_t>(n); ++j) {
      image.pages.push_back(std::make_shared<const Bytes>(page_content(prefix, j)));
    }
    return image;
  };
  std::vector<SnapshotImage> images;
  for (int32_t n = 1; n <= 60; ++n) images.push_back(image_of(n));
  std::mt19937_64 random(7);
  size_t most_found = 0;
  for (int trial = 0; trial < 12; ++trial) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      SnapshotFiles writing(file_options());
      for (const SnapshotImage& image : images) writing.write(image);
      writing.flush();
      _exit(0);
    }
    usleep(static_cast<useconds_t>(random() % 60000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    SnapshotFiles reading(file_options());
    reading.flush();
    for (const fs::path& path : files()) EXPECT_NE(path.extension(), ".partial");
    size_t found = 0;
    for (const SnapshotImage& image : images) {
      const auto whole = reading.read(image.name);
      if (!whole) continue;
      ++found;
      EXPECT_EQ(*whole->state, *image.state);
      EXPECT_TRUE(std::equal(whole->tokens.begin(), whole->tokens.end(), tokens.begin()));
      for (size_t j = 0; j < whole->pages.size(); ++j) EXPECT_EQ(*whole->pages[j], *images[j / 5].pages[j % 5]);
    }
    EXPECT_EQ(found, files().size());
    EXPECT_GE(found, most_found);
    most_found = found;
  }
  EXPECT_EQ(log_, std::vector<std::string>{});
}

TEST(SnapshotPoints, AreHintsEndAndTwoBetweenInALongGap) {
  EXPECT_EQ(snapshot_points(100, {}), std::vector<int32_t>{});
  EXPECT_EQ(snapshot_points(300, {}), std::vector<int32_t>{299});
  EXPECT_EQ(snapshot_points(1000, std::vector<int32_t>{300, 400, 800}), (std::vector<int32_t>{300, 800}));
  EXPECT_EQ(snapshot_points(1000, std::vector<int32_t>{300, 600}), (std::vector<int32_t>{300, 600, 999}));
  const auto points = snapshot_points(10001, std::vector<int32_t>{1000});
  EXPECT_EQ(points, (std::vector<int32_t>{1000, 4000, 7000, 10000}));
}

}  // namespace
}  // namespace tensorfold::engine
