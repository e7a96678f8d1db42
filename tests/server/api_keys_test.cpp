// Keys from a file: who may read it, labels, and what happens when it changes under a running server.
#include "server/api_keys.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace tensorfold::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class KeyFile : public ::testing::Test {
 protected:
  ~KeyFile() override { std::filesystem::remove(path_); }
  void write(const std::string& text, mode_t mode = 0600) {
    std::filesystem::remove(path_);
    std::ofstream(path_) << text;
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
    // Two writes within the clock's step must not look the same.
    std::filesystem::last_write_time(path_,
                                     std::filesystem::file_time_type::clock::now() + std::chrono::seconds(++changes_));
  }
  /// Longer than the interval at which a server looks at the file.
  static void wait_for_a_look() { std::this_thread::sleep_for(std::chrono::milliseconds(1100)); }
  [[nodiscard]] std::string problem() const {
    try {
      const ApiKeys keys({}, "", path_.string());
    } catch (const Error& failure) {
      return failure.what();
    }
    return {};
  }

  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("tensorfold-keys-" + std::to_string(getpid()));
  int changes_ = 0;
};

TEST_F(KeyFile, HasLabelsCommentsAndNumbers) {
  write("# who\nalice: secret-a\n\n  secret-b  \nnot a label: secret-c\n");
  ApiKeys keys({"secret-d"}, "secret-e, secret-f,", path_.string());
  EXPECT_TRUE(keys.required());
  EXPECT_EQ(keys.label_of("secret-a"), "alice");
  EXPECT_EQ(keys.label_of("secret-b"), "file-2");
  EXPECT_EQ(keys.label_of("not a label: secret-c"), "file-3");
  EXPECT_EQ(keys.label_of("secret-d"), "cli-1");
  EXPECT_EQ(keys.label_of("secret-f"), "env-2");
  for (const char* wrong : {"", "secret", "secret-a ", "alice", "Secret-a", "secret-aa"}) {
    EXPECT_FALSE(keys.label_of(wrong)) << wrong;
  }
}

TEST_F(KeyFile, IsRefusedAtTheStartWhenOthersMayReadItOrItHoldsNothing) {
  for (const mode_t mode : {0640U, 0604U, 0666U}) {
    write("secret-key\n", mode);
    EXPECT_THAT(problem(), HasSubstr("0600"));
    EXPECT_THAT(problem(), Not(HasSubstr("secret-key")));
  }
  write("# nothing\n");
  EXPECT_THAT(problem(), HasSubstr("holds no key"));
  write("bob:\n");
  EXPECT_THAT(problem(), HasSubstr("empty key"));
  std::filesystem::remove(path_);
  EXPECT_THAT(problem(), HasSubstr("cannot be read"));
  write("secret-key\n", 0400);
  EXPECT_EQ(problem(), "");
}

TEST_F(KeyFile, IsReadAgainWhenItChangesAndClosesTheServerWhileItIsWrong) {
  write("old-key\n");
  ApiKeys keys({}, "", path_.string());
  EXPECT_TRUE(keys.label_of("old-key"));
  write("new-key\n");
  wait_for_a_look();
  EXPECT_TRUE(keys.label_of("new-key"));
  EXPECT_FALSE(keys.label_of("old-key"));
  ::testing::internal::CaptureStderr();
  write("new-key\n", 0644);
  keys.reload();  // what a signal does: at once
  EXPECT_TRUE(keys.label_of("new-key")) << "what was read while the file was right stays";
  write("other-key\n", 0644);
  wait_for_a_look();
  EXPECT_FALSE(keys.label_of("other-key")) << "a file that others can write is not read";
  write("");
  wait_for_a_look();
  EXPECT_FALSE(keys.label_of("new-key"));
  EXPECT_TRUE(keys.required()) << "closed, not open";
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::AllOf(HasSubstr("0600"), Not(HasSubstr("new-key"))));
  write("last-key\n");
  wait_for_a_look();
  EXPECT_TRUE(keys.label_of("last-key"));
}

TEST_F(KeyFile, ThatIsOpenedToOthersIsNoticedAndOneThatHidesItsChangeToo) {
  write("old-key\n");
  ApiKeys keys({}, "", path_.string());
  ::testing::internal::CaptureStderr();
  ASSERT_EQ(::chmod(path_.c_str(), 0644), 0);
  wait_for_a_look();
  EXPECT_TRUE(keys.label_of("old-key"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("open to others"));
  const auto time = std::filesystem::last_write_time(path_);
  ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
  std::ofstream(path_) << "new-key\n";
  std::filesystem::last_write_time(path_, time);
  wait_for_a_look();
  EXPECT_TRUE(keys.label_of("new-key"));
  EXPECT_FALSE(keys.label_of("old-key"));
}

TEST_F(KeyFile, ThatBecomesAPipeStopsNobody) {
  write("old-key\n");
  ApiKeys keys({"fixed-key"}, "", path_.string());
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  ::testing::internal::CaptureStderr();
  wait_for_a_look();
  EXPECT_FALSE(keys.label_of("old-key"));
  EXPECT_TRUE(keys.label_of("fixed-key"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("no regular file"));
}

TEST_F(KeyFile, MayBeginWithAByteOrderMark) {
  write("\xEF\xBB\xBFone: secret-a\r\ntwo: secret-b\r\n");
  ApiKeys keys({}, "", path_.string());
  EXPECT_EQ(keys.label_of("secret-a"), "one");
  EXPECT_EQ(keys.label_of("secret-b"), "two");
}

TEST(PresentedKey, ComesFromEitherHeader) {
  EXPECT_EQ(presented_key("Bearer abc", std::nullopt), "abc");
  EXPECT_EQ(presented_key("bearer  abc ", "xyz"), "abc");
  EXPECT_EQ(presented_key("Basic abc", " xyz"), "xyz");
  EXPECT_EQ(presented_key("Bearer ", std::nullopt), "");
  EXPECT_EQ(presented_key(std::nullopt, std::nullopt), "");
}

}  // namespace
}  // namespace tensorfold::server
