// Caches as the Python hub client writes them, restated as layouts and read by ours; and what ours writes.
#include "hub/cache.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "hub/file_lock.h"
#include "hub/hub_fixture.h"
#include "hub/partial_file.h"

namespace tensorfold::hub {
namespace {

namespace fs = std::filesystem;
using testing::commit_of;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;

class CacheTest : public ::testing::Test {
 protected:
  [[nodiscard]] fs::path repo_folder() const { return folder_.path() / "models--ORG--Model"; }
  [[nodiscard]] fs::path snapshot(char digit) const { return repo_folder() / "snapshots" / commit_of(digit); }

  /// A file the way the Python client stores it: a blob and a relative link.
  void add_linked(char digit, const std::string& name, const std::string& content) {
    const std::string etag = testing::etag_of(content, true);
    write_file(repo_folder() / "blobs" / etag, content);
    fs::create_directories((snapshot(digit) / name).parent_path());
    fs::path up = "../..";
    for (auto n = std::count(name.begin(), name.end(), '/'); n > 0; --n) up /= "..";
    fs::create_symlink(up / "blobs" / etag, snapshot(digit) / name);
  }

  void add_model(char digit) {
    add_linked(digit, "config.json", std::string("{\"of\":\"") + digit + "\"}");
    add_linked(digit, "model.safetensors", std::string("weights of ") + digit);
    add_linked(digit, "tokenizer.json", "{}");
  }

  void set_time(char digit, int seconds) {
    fs::last_write_time(snapshot(digit), fs::file_time_type::clock::now() + std::chrono::seconds(seconds));
  }

  TemporaryFolder folder_;
  Cache cache_{folder_.path()};
  RepoId repo_{"ORG", "Model", ""};
};

TEST_F(CacheTest, ARefWithATrailingNewlineNamesItsSnapshot) {
  add_model('a');
  add_model('b');
  write_file(repo_folder() / "refs" / "main", commit_of('a') + "\n");
  set_time('b', 100);
  const auto found = cache_.locate(repo_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->commit, commit_of('a'));
  EXPECT_TRUE(found->from_ref);
  EXPECT_TRUE(Cache::missing_files(*found).empty());
}

TEST_F(CacheTest, WithoutARefTheNewestSnapshotWithAConfigServes) {
  add_model('a');
  add_model('b');
  fs::create_directories(snapshot('c'));
  set_time('a', 100);
  set_time('b', 50);
  set_time('c', 200);
  const auto found = cache_.locate(repo_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->commit, commit_of('a'));
  EXPECT_FALSE(found->from_ref);
}

TEST_F(CacheTest, ARefToASnapshotThatIsGoneFallsBackToo) {
  add_model('a');
  write_file(repo_folder() / "refs" / "main", commit_of('b'));
  EXPECT_EQ(cache_.locate(repo_)->commit, commit_of('a'));
}

TEST_F(CacheTest, ARefIsNeverUsedAsAPath) {
  add_model('a');
  write_file(folder_.path() / "outside" / "config.json", "{}");
  for (const char* content : {"../../../outside", "../..", "/etc", "", "\n", ".", ".."}) {
    write_file(repo_folder() / "refs" / "main", content);
    EXPECT_EQ(cache_.locate(repo_)->commit, commit_of('a')) << content;
  }
}

TEST_F(CacheTest, BranchesTagsAndCommitsAreRevisions) {
  add_model('a');
  add_model('b');
  write_file(repo_folder() / "refs" / "main", commit_of('a'));
  write_file(repo_folder() / "refs" / "refs" / "pr" / "7", commit_of('b'));
  EXPECT_EQ(cache_.locate({"ORG", "Model", "refs/pr/7"})->commit, commit_of('b'));
  EXPECT_EQ(cache_.locate({"ORG", "Model", commit_of('b')})->commit, commit_of('b'));
  EXPECT_FALSE(cache_.locate({"ORG", "Model", "v2"}));
  EXPECT_FALSE(cache_.locate({"ORG", "Model", commit_of('c')}));
  EXPECT_FALSE(cache_.locate({"ORG", "Other", ""}));
}

TEST_F(CacheTest, ADanglingLinkIsAMissingFile) {
  add_model('a');
  fs::remove_all(repo_folder() / "blobs");
  write_file(repo_folder() / "refs" / "main", commit_of('a'));
  const auto found = cache_.locate(repo_);
  ASSERT_TRUE(found);
  EXPECT_EQ(Cache::missing_files(*found),
            (std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));
}

TEST_F(CacheTest, AModelOfThePythonToolsNeedsATokenizerAndADraftModelDoesNot) {
  add_model('a');
  fs::remove(snapshot('a') / "tokenizer.json");
  EXPECT_EQ(Cache::missing_files(*cache_.locate(repo_)), std::vector<std::string>{"tokenizer.json"});
  EXPECT_FALSE(cache_.list()[0].complete);
  fs::create_symlink("../../blobs/gone", snapshot('a') / "tokenizer_config.json");
  add_linked('b', "config.json", R"({"dflash_config":{}})");
  add_linked('b', "model.safetensors", "draft weights");
  EXPECT_TRUE(Cache::missing_files({snapshot('b'), commit_of('b'), true}).empty());
  cache_.write_expected(repo_, commit_of('a'), {});
  EXPECT_EQ(Cache::missing_files({snapshot('a'), commit_of('a'), true}),
            std::vector<std::string>{"tokenizer_config.json"})
      << "the list says that the hub has no tokenizer; the dangling link is missing all the same";
}

TEST_F(CacheTest, AFolderThatCannotBeMadeIsNamedWithTheWayOut) {
  write_file(folder_.path() / "file", "");
  const Cache cache(folder_.path() / "file");
  for (const auto& action : {std::function<void()>([&] { FileLock::try_acquire(cache.lock_path(repo_, "x")); }),
                             std::function<void()>([&] { PartialFile(cache.blob_path(repo_, "x"), 1, 1); })}) {
    try {
      action();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      const std::string words = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::io);
      EXPECT_NE(words.find("cannot create"), std::string::npos) << words;
      EXPECT_NE(words.find("HF_HOME"), std::string::npos) << words;
    }
  }
}

TEST_F(CacheTest, AModelThatIsBeingFetchedIsNotRemoved) {
  add_model('a');
  auto lock = FileLock::try_acquire(cache_.lock_path(repo_, "x"));
  ASSERT_TRUE(lock);
  EXPECT_THROW(cache_.remove(repo_), Error);
  EXPECT_TRUE(fs::exists(snapshot('a') / "model.safetensors"));
  lock.reset();
  EXPECT_GT(cache_.remove(repo_), 0u);
}

TEST_F(CacheTest, MarkersOfAbsentFilesAreNoSnapshot) {
  write_file(repo_folder() / ".no_exist" / commit_of('a') / "config.json", "");
  write_file(repo_folder() / "refs" / "main", commit_of('a'));
  EXPECT_FALSE(cache_.locate(repo_));
  ASSERT_EQ(cache_.list().size(), 1u);
  EXPECT_FALSE(cache_.list()[0].complete);
}

TEST_F(CacheTest, AbsoluteLinksAndPlainFilesAreRead) {
  write_file(folder_.path() / "elsewhere" / "config.json", "{}");
  fs::create_directories(snapshot('a'));
  fs::create_symlink(folder_.path() / "elsewhere" / "config.json", snapshot('a') / "config.json");
  write_file(snapshot('a') / "model.safetensors", "plain");
  write_file(snapshot('a') / "tokenizer.json", "{}");
  EXPECT_TRUE(Cache::missing_files(*cache_.locate(repo_)).empty());
}

TEST_F(CacheTest, AShardTheIndexNamesHasToBeThere) {
  add_model('a');
  add_linked('a', "model.safetensors.index.json",
             R"({"weight_map":{"x":"model.safetensors","y":"mtp/head.safetensors"}})");
  const Snapshot found = *cache_.locate(repo_);
  EXPECT_EQ(Cache::missing_files(found), std::vector<std::string>{"mtp/head.safetensors"});
  add_linked('a', "mtp/head.safetensors", "head");
  EXPECT_TRUE(Cache::missing_files(found).empty());
}

TEST_F(CacheTest, ABrokenIndexIsMissing) {
  add_model('a');
  add_linked('a', "model.safetensors.index.json", "{\"weight_map\":");
  EXPECT_EQ(Cache::missing_files(*cache_.locate(repo_)), std::vector<std::string>{"model.safetensors.index.json"});
}

TEST_F(CacheTest, FilesAPullSetOutToFetchHaveToBeThereInFull) {
  add_model('a');
  cache_.write_expected(repo_, commit_of('a'),
                        {{"config.json", 10}, {"model.safetensors", 99}, {"mtp-4bit.safetensors", 5}});
  const auto missing = Cache::missing_files(*cache_.locate(repo_));
  EXPECT_EQ(missing, (std::vector<std::string>{"model.safetensors", "mtp-4bit.safetensors"}));
}

TEST_F(CacheTest, FilesAreLinkedRelativeToTheirFolder) {
  write_file(cache_.blob_path(repo_, "abc"), "content");
  cache_.link_file(repo_, commit_of('a'), "deep/er/file.json", "abc");
  const fs::path file = snapshot('a') / "deep/er/file.json";
  EXPECT_EQ(fs::read_symlink(file), "../../../../blobs/abc");
  EXPECT_EQ(read_file(file), "content");
  cache_.link_file(repo_, commit_of('a'), "deep/er/file.json", "abc");
  EXPECT_EQ(read_file(file), "content");
}

TEST_F(CacheTest, ADanglingLinkIsReplaced) {
  fs::create_directories(snapshot('a'));
  fs::create_symlink("../../blobs/old", snapshot('a') / "config.json");
  write_file(cache_.blob_path(repo_, "new"), "content");
  cache_.link_file(repo_, commit_of('a'), "config.json", "new");
  EXPECT_EQ(read_file(snapshot('a') / "config.json"), "content");
}

TEST_F(CacheTest, WithoutSymbolicLinksTheContentIsThereAllTheSame) {
  const Cache plain(folder_.path(), Cache::Links::none);
  write_file(plain.blob_path(repo_, "abc"), "content");
  for (int again = 0; again < 2; ++again) plain.link_file(repo_, commit_of('a'), "config.json", "abc");
  EXPECT_FALSE(fs::is_symlink(snapshot('a') / "config.json"));
  EXPECT_EQ(read_file(snapshot('a') / "config.json"), "content");
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(snapshot('a'))) ++entries;
  EXPECT_EQ(entries, 1u);
  EXPECT_EQ(cache_.list()[0].bytes, 7u);
}

TEST_F(CacheTest, NothingIsWrittenThroughALinkedFolder) {
  const TemporaryFolder outside;
  fs::create_directories(snapshot('a'));
  fs::create_symlink(outside.path(), snapshot('a') / "sub");
  write_file(cache_.blob_path(repo_, "abc"), "content");
  EXPECT_THROW(cache_.link_file(repo_, commit_of('a'), "sub/file.json", "abc"), Error);
  EXPECT_TRUE(fs::is_empty(outside.path()));
}

TEST_F(CacheTest, ListingCountsASharedBlobOnce) {
  add_model('a');
  write_file(repo_folder() / "refs" / "main", commit_of('a'));
  const auto alone = cache_.list();
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_EQ(alone[0].id, "ORG/Model");
  EXPECT_TRUE(alone[0].complete);
  EXPECT_EQ(alone[0].directory, snapshot('a'));
  fs::create_directories(snapshot('b'));
  fs::copy_symlink(snapshot('a') / "model.safetensors", snapshot('b') / "model.safetensors");
  EXPECT_EQ(cache_.list()[0].bytes, alone[0].bytes);
}

TEST_F(CacheTest, RemovingAModelFreesItAndLeavesTheOthers) {
  add_model('a');
  write_file(folder_.path() / "models--ORG--Other" / "blobs" / "x", "other");
  EXPECT_GT(cache_.remove(repo_), 0u);
  EXPECT_FALSE(fs::exists(repo_folder()));
  EXPECT_TRUE(fs::exists(folder_.path() / "models--ORG--Other" / "blobs" / "x"));
  EXPECT_THROW(cache_.remove(repo_), Error);
}

TEST_F(CacheTest, RemovingALinkedModelTouchesNothing) {
  const TemporaryFolder outside;
  write_file(outside.path() / "blobs" / "x", "precious");
  fs::create_directory_symlink(outside.path(), repo_folder());
  EXPECT_THROW(cache_.remove(repo_), Error);
  EXPECT_EQ(read_file(outside.path() / "blobs" / "x"), "precious");
}

TEST_F(CacheTest, ARefIsWrittenWithoutANewlineAsThePythonClientDoes) {
  cache_.write_ref(repo_, commit_of('a'));
  EXPECT_EQ(read_file(repo_folder() / "refs" / "main"), commit_of('a'));
  cache_.write_ref({"ORG", "Model", "refs/pr/1"}, commit_of('b'));
  EXPECT_EQ(read_file(repo_folder() / "refs" / "refs" / "pr" / "1"), commit_of('b'));
}

}  // namespace
}  // namespace tensorfold::hub
