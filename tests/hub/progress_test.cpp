#include "hub/progress.h"

#include <chrono>
#include <sstream>
#include <string>
#include <vector>

#include "hub/hub_fixture.h"

namespace tensorfold::hub {
namespace {

using testing::read_file;
using testing::TemporaryFolder;
using Clock = RateMeter::Clock;

TEST(Figures, BytesAndTimesReadWell) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1'000), "1.0 kB");
  EXPECT_EQ(human_bytes(999'949), "999.9 kB");
  EXPECT_EQ(human_bytes(999'999), "1.0 MB");
  EXPECT_EQ(human_bytes(18'600'000'000), "18.6 GB");
  EXPECT_EQ(human_time(42.2), "0:43");
  EXPECT_EQ(human_time(725), "12:05");
  EXPECT_EQ(human_time(12'000), "3:20:00");
}

TEST(Figures, TheBarFillsFromLeftToRight) {
  EXPECT_EQ(bar(0, 12), "[..........]");
  EXPECT_EQ(bar(0.5, 12), "[#####.....]");
  EXPECT_EQ(bar(2, 12), "[##########]");
}

TEST(Figures, TheRateIsThatOfTheLastSeconds) {
  RateMeter meter;
  const Clock::time_point start{};
  meter.begin(1'000'000'000, 100'000'000, start);
  EXPECT_EQ(meter.summary(), "100.0 MB of 1.0 GB (10 %)");
  for (int second = 1; second <= 20; ++second) {
    meter.advance(second <= 10 ? 1'000'000 : 20'000'000);
    meter.sample(start + std::chrono::seconds(second));
  }
  EXPECT_NEAR(meter.rate(), 20e6, 1.0);
  EXPECT_EQ(meter.summary(), "310.0 MB of 1.0 GB (31 %), 20.0 MB/s, 0:35 left");
}

TEST(LineProgressOutput, SaysLittleAndAllOfItInWholeLines) {
  std::vector<std::string> lines;
  LineProgress progress([&](const std::string& line) { lines.push_back(line); }, std::chrono::milliseconds(0));
  progress.begin("ORG/Model", 3, 500'000'000, 100'000'000);
  progress.advance(200'000'000);
  progress.file_done("small.json", 10);
  progress.file_done("model.safetensors", 300'000'000);
  progress.tick();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "ORG/Model: 3 files, 500.0 MB, 100.0 MB of it already here");
  EXPECT_EQ(lines[1], "model.safetensors is here (300.0 MB)");
  EXPECT_TRUE(lines[2].starts_with("300.0 MB of 500.0 MB (60 %)")) << lines[2];
}

TEST(TerminalProgressOutput, StaysWithinTheTerminalsWidth) {
  const TemporaryFolder folder;
  for (const int columns : {20, 40, 80, 200}) {
    const auto path = folder.path() / "terminal";
    std::FILE* file = std::fopen(path.c_str(), "w");
    {
      TerminalProgress progress(file, columns);
      progress.begin("ORG/Model", 3, 500'000'000'000, 0);
      progress.advance(123'456'789'000);
      progress.tick();
      progress.note("a note");
      progress.end();
    }
    std::fclose(file);
    std::stringstream all(read_file(path));
    std::string drawn;
    while (std::getline(all, drawn, '\r')) {
      const std::string text = drawn.substr(0, drawn.find('\x1b'));
      EXPECT_LT(text.size(), static_cast<size_t>(columns)) << text;
    }
  }
}

}  // namespace
}  // namespace tensorfold::hub
