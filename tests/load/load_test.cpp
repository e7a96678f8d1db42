// Many clients against the whole program: the demonstration model behind the server, on this machine's processors.
// TENSORFOLD_LOAD_SECONDS and TENSORFOLD_LOAD_CLIENTS set the size; without them it is a small one.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "cli/loaded_model.h"
#include "cli/model_options.h"
#include "server/raw_client.h"
#include "server/server.h"
#include "shared_data.h"

namespace tensorfold::server {
namespace {

using Clock = std::chrono::steady_clock;

int setting(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::atoi(value) : otherwise;
}

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / 1048576.0;
}

/// What only the reply to this request says.
std::string secret_of(int word) { return std::to_string(11 + 3 * word) + " + " + std::to_string(20 + word); }

/// A request that carries a secret of its own.
std::string body_of(int word, bool stream) {
  const Json body = {{"messages", Json::array({{{"role", "user"}, {"content", "What is " + secret_of(word) + "?"}}})},
                     {"chat_template_kwargs", {{"enable_thinking", false}}},
                     {"temperature", 0},
                     {"max_tokens", 24},
                     {"stream", stream}};
  return dump(body);
}

std::string content_of(const std::string& stream) {
  std::string content;
  for (size_t at = stream.find("data: {"); at != std::string::npos; at = stream.find("data: {", at + 1)) {
    const Json chunk = Json::parse(stream.substr(at + 6, stream.find("\n\n", at) - at - 6), nullptr, false);
    if (chunk.is_object() && !chunk["choices"].empty()) {
      content += chunk["choices"][0]["delta"].value("content", "");
    }
  }
  return content;
}

class Load : public ::testing::Test {
 protected:
  static constexpr int words = 24;

  void SetUp() override {
    loaded_ = cli::load_model(testing::project_path("models/demo").string(), cli::RunOptions{});
    ServerOptions options;
    options.http.port = 0;
    options.service.names = {"demo"};
    options.service.log_format = RequestLogFormat::off;
    options.service.queue_limit = 4096;
    server_ = std::make_unique<Server>(loaded_->served(), options);
    for (int word = 0; word < words; ++word) {
      RawClient client(server_->port());
      client.send(post("/v1/chat/completions", body_of(word, false)));
      const Json reply = Json::parse(client.read_reply().body);
      alone_[word] = reply["choices"][0]["message"]["content"].get<std::string>();
      // Or a reply to another request could not be told from the right one.
      EXPECT_THAT(alone_[word], ::testing::HasSubstr(secret_of(word)));
    }
  }

  /// One client's life: reply after reply until the time is over.
  void live(int number, Clock::time_point end) {
    std::mt19937 random(static_cast<unsigned>(number));
    while (Clock::now() < end) {
      const int word = static_cast<int>(random() % words);
      RawClient client(server_->port());
      if (random() % 10 == 0) {
        std::string garbage(random() % 3000, '\0');
        for (char& c : garbage) c = static_cast<char>(random());
        client.send(random() % 2 == 0 ? garbage : post("/v1/chat/completions", garbage));
        ++garbled_;
        continue;
      }
      if (!client.send(post("/v1/chat/completions", body_of(word, true)))) continue;
      if (random() % 3 == 0) {
        client.read_until("data: ");
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 200));
        ++left_;
        continue;
      }
      const RawReply reply = client.read_reply();
      if (reply.status != 200) {
        ++refused_;
      } else if (content_of(reply.body) != alone_[word]) {
        ++wrong_;
      } else {
        ++right_;
      }
    }
  }

  void watch_health(Clock::time_point end, std::vector<double>& seconds) {
    while (Clock::now() < end) {
      const auto start = Clock::now();
      RawClient client(server_->port());
      client.send(get("/health"));
      if (client.read_reply().status == 200) {
        seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  std::unique_ptr<cli::LoadedModel> loaded_;
  std::unique_ptr<Server> server_;
  std::map<int, std::string> alone_;
  std::atomic<int> right_{0};
  std::atomic<int> wrong_{0};
  std::atomic<int> refused_{0};
  std::atomic<int> left_{0};
  std::atomic<int> garbled_{0};
};

TEST_F(Load, EveryReplyIsItsOwnAndNothingLeaks) {
  const int seconds = setting("TENSORFOLD_LOAD_SECONDS", 4);
  const int clients = setting("TENSORFOLD_LOAD_CLIENTS", 24);
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  std::vector<double> health;
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) threads.emplace_back([this, i, end] { live(i, end); });
  threads.emplace_back([this, end, &health] { watch_health(end, health); });
  std::this_thread::sleep_for(std::chrono::seconds(seconds) / 3);
  const double early = resident_mib();
  for (std::thread& thread : threads) thread.join();
  const double late = resident_mib();

  for (int tries = 0; tries < 1000 && loaded_->engine->status().running > 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(loaded_->engine->status().running, 0) << "everyone left, so nothing may run";
  EXPECT_EQ(loaded_->engine->status().waiting, 0);
  EXPECT_EQ(wrong_, 0);
  EXPECT_EQ(refused_, 0);
  EXPECT_GT(right_, 0);
  std::sort(health.begin(), health.end());
  ASSERT_FALSE(health.empty());
  const double slowest = health[(health.size() * 99 + 99) / 100 - 1];
  std::printf(
      "%d clients, %d s: %d right, %d left early, %d garbage; health p50 %.1f ms, p99 %.1f ms; "
      "resident %.0f -> %.0f MiB\n",
      clients, seconds, right_.load(), left_.load(), garbled_.load(), health[health.size() / 2] * 1e3, slowest * 1e3,
      early, late);
  if (seconds >= 30) {
    EXPECT_LT(slowest, 0.1);
    EXPECT_LT(late, early * 1.05);
  }
}

}  // namespace
}  // namespace tensorfold::server
