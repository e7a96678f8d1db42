#include "hub/partial_file.h"

#include <algorithm>
#include <random>

#include "hub/hub_fixture.h"

namespace tensorfold::hub {
namespace {

namespace fs = std::filesystem;
using testing::random_bytes;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;

std::span<const std::byte> bytes(const std::string& text, uint64_t begin, uint64_t end) {
  return std::as_bytes(std::span(text)).subspan(begin, end - begin);
}

class PartialFileTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  fs::path blob_ = folder_.path() / "blobs" / "abc";
  std::string content_ = random_bytes(10'007, 1);
};

TEST_F(PartialFileTest, PiecesInAnyOrderAndAnySizesMakeTheFile) {
  std::mt19937 random(7);
  for (const uint64_t piece_bytes : {1'000u, 10'007u, 20'000u, 1u << 20}) {
    PartialFile part(blob_, content_.size(), piece_bytes);
    std::vector<size_t> open(part.piece_count());
    for (size_t piece = 0; piece < open.size(); ++piece) open[piece] = piece;
    while (!open.empty()) {
      const size_t pick = random() % open.size();
      const size_t piece = open[pick];
      const uint64_t from = part.position(piece);
      const uint64_t to = std::min<uint64_t>(part.piece_end(piece), from + 1 + random() % 700);
      part.write(piece, bytes(content_, from, to));
      if (part.is_filled(piece)) open.erase(open.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    EXPECT_EQ(part.filled_prefix(), content_.size());
    part.publish();
    EXPECT_EQ(read_file(blob_), content_);
    size_t files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(blob_.parent_path())) ++files;
    EXPECT_EQ(files, 1u);
    fs::remove(blob_);
  }
}

TEST_F(PartialFileTest, AnUnfinishedFileIsFoundAgainWithItsOwnPieces) {
  {
    PartialFile part(blob_, content_.size(), 1'000);
    part.write(0, bytes(content_, 0, 1'000));
    part.write(1, bytes(content_, 1'000, 1'400));
    part.write(5, bytes(content_, 5'000, 5'001));
  }
  EXPECT_EQ(PartialFile::received_on_disk(blob_, content_.size()), 1'401u);
  PartialFile part(blob_, content_.size(), 4'096);
  EXPECT_EQ(part.piece_count(), 11u);
  EXPECT_EQ(part.received(), 1'401u);
  EXPECT_EQ(part.filled_prefix(), 1'400u);
  EXPECT_EQ(part.position(5), 5'001u);
}

TEST_F(PartialFileTest, AJournalThatDoesNotFitStartsAnew) {
  const auto damage = [&](auto change) {
    {
      PartialFile part(blob_, content_.size(), 1'000);
      part.restart(1'000);
      part.write(0, bytes(content_, 0, 1'000));
    }
    change();
    PartialFile part(blob_, content_.size(), 1'000);
    EXPECT_EQ(part.received(), 0u);
    EXPECT_EQ(part.piece_count(), 11u);
  };
  const fs::path journal = blob_.string() + ".tensorfold-journal";
  const fs::path data = blob_.string() + ".tensorfold-part";
  damage([&] { fs::resize_file(journal, 30); });
  damage([&] { write_file(journal, ""); });
  damage([&] { write_file(journal, random_bytes(112, 3)); });
  damage([&] { fs::resize_file(data, 500); });
  damage([&] { fs::remove(data); });
  damage([&] {
    std::string words = read_file(journal);
    std::fill(words.begin() + 24, words.begin() + 32, '\x7f');
    write_file(journal, words);
  });
}

TEST_F(PartialFileTest, AnotherSizeStartsAnew) {
  {
    PartialFile part(blob_, content_.size(), 1'000);
    part.write(0, bytes(content_, 0, 1'000));
  }
  PartialFile part(blob_, 5'000, 1'000);
  EXPECT_EQ(part.received(), 0u);
  EXPECT_EQ(part.piece_count(), 5u);
}

TEST_F(PartialFileTest, ThePythonClientsPartIsAFilledBeginning) {
  write_file(blob_.string() + ".incomplete", content_.substr(0, 2'500));
  EXPECT_EQ(PartialFile::received_on_disk(blob_, content_.size()), 2'500u);
  PartialFile part(blob_, content_.size(), 1'000);
  EXPECT_EQ(part.received(), 2'500u);
  EXPECT_EQ(part.filled_prefix(), 2'500u);
  std::string back(2'500, '\0');
  EXPECT_EQ(part.read(0, std::as_writable_bytes(std::span(back))), 2'500u);
  EXPECT_EQ(back, content_.substr(0, 2'500));
}

TEST_F(PartialFileTest, LinksInItsPlaceAreNotFollowed) {
  write_file(folder_.path() / "victim", "precious");
  fs::create_directories(blob_.parent_path());
  fs::create_symlink(folder_.path() / "victim", blob_.string() + ".tensorfold-part");
  {
    PartialFile part(blob_, content_.size(), 1'000);
    part.write(0, bytes(content_, 0, 1'000));
  }
  EXPECT_EQ(read_file(folder_.path() / "victim"), "precious");
}

TEST_F(PartialFileTest, AnEmptyFileHasNoPieces) {
  PartialFile part(blob_, 0, 1'000);
  EXPECT_EQ(part.piece_count(), 0u);
  part.publish();
  EXPECT_EQ(fs::file_size(blob_), 0u);
}

}  // namespace
}  // namespace tensorfold::hub
