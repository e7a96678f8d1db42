#include "base/file.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/console.h"
#include "base/error.h"
#include "base/presence.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

class FileNames : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string refusal(const char* name) {
    try {
      read_text_file(folder_ / name, 1000);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }
  fs::path folder_ = fs::temp_directory_path() / ("tensorfold-files-" + std::to_string(::getpid()));
};

TEST_F(FileNames, APipeOrADeviceIsRefusedAndNeverWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", folder_ / "zero");
  fs::create_directory(folder_ / "folder");
  EXPECT_NE(refusal("pipe").find("pipe is not a regular file"), std::string::npos);
  EXPECT_NE(refusal("zero").find("zero is not a regular file"), std::string::npos);
  EXPECT_NE(refusal("folder").find("is a folder, not a regular file"), std::string::npos);
}

TEST_F(FileNames, ASparseGiantIsRefusedByItsSize) {
  std::ofstream(folder_ / "giant").put('x');
  fs::resize_file(folder_ / "giant", uint64_t{1} << 40);
  EXPECT_NE(refusal("giant").find("giant has 1099511627776 bytes; at most 1000"), std::string::npos);
}

TEST_F(FileNames, ALinkToNothingIsNotAnAbsentFile) {
  fs::create_symlink("gone", folder_ / "dangling");
  fs::create_symlink("loop", folder_ / "loop");
  std::ofstream(folder_ / "there").put('x');
  EXPECT_FALSE(has_file(folder_ / "absent"));
  EXPECT_TRUE(has_file(folder_ / "there"));
  EXPECT_THROW(has_file(folder_ / "dangling"), Error);
  EXPECT_NE(refusal("dangling").find("points to a missing file: fetch it again"), std::string::npos);
  EXPECT_THROW(has_file(folder_ / "loop"), Error);
}

TEST(Console, ControlCharactersAreShownAndNotSent) {
  EXPECT_EQ(without_controls("a\x1b[31mb\x7f\xc2\x9b"
                             "c\u00e9\n"),
            "a\\x1b[31mb\\x7f\\x9bc\u00e9\n");
}

TEST(Console, AnOutputThatTakesNothingIsNoFailure) {
  std::FILE* full = std::fopen("/dev/full", "w");
  if (full == nullptr) GTEST_SKIP() << "there is no /dev/full";
  say_line(full, "lost");
  EXPECT_NE(std::ferror(full), 0);
  std::fclose(full);
}

}  // namespace
}  // namespace tensorfold
