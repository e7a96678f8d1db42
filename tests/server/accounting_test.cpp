// Who is counted where: places and the queue, tokens in the metrics, lines in the log.
#include <atomic>
#include <chrono>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/scripted_api.h"

namespace tensorfold::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Json chat_body(Json body) {
  body["messages"] = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  return no_thinking(std::move(body));
}

/// The value of an unlabelled series.
double metric(Api& api, const std::string& name) {
  const std::string text = api.get_reply("/metrics").body;
  const size_t at = text.find("\n" + name + " ");
  EXPECT_NE(at, std::string::npos) << name;
  return at == std::string::npos ? -1.0 : std::stod(text.substr(at + name.size() + 2));
}

/// True once `condition` holds; what a client can see, the log and metrics know a little later.
template <typename Condition>
bool soon(Condition condition) {
  for (int tries = 0; tries < 2000 && !condition(); ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return condition();
}

/// The lines of a JSON log.
std::vector<Json> entries(const std::string& log) {
  std::vector<Json> lines;
  std::istringstream stream(log);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

ServerOptions logging() {
  ServerOptions options;
  options.service.log_format = RequestLogFormat::json;
  return options;
}

TEST(Queue, RefusesOnlyWhatNeitherRunsNorMayWait) {
  ServerOptions options;
  options.service.queue_limit = 2;
  Api api("one two three", 1, options);
  api.engine().lanes = 2;
  std::atomic<bool> held = true;
  api.writer = [&held](const engine::Request&) {
    while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return "one";
  };
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<RawClient>(api.port()));
    clients.back()->send(post("/v1/chat/completions", dump(chat_body({}))));
  }
  EXPECT_TRUE(soon([&] { return api.engine().submitted() == 4; })) << "two lanes and two that wait";
  const RawReply refused = api.call("/v1/chat/completions", chat_body({}));
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.head, HasSubstr("Retry-After:"));
  const Json question = {{"id", "q"}, {"type", "yes_no"}, {"question", "Is it?"}};
  EXPECT_EQ(api.call("/v1/decisions", {{"input", "x"}, {"questions", Json::array({question})}}).status, 429);
  held = false;
  for (const auto& client : clients) EXPECT_EQ(client->read_reply().status, 200);
  EXPECT_EQ(api.call("/v1/chat/completions", chat_body({})).status, 200) << "a place is free when its reply is there";
}

TEST(Metrics, RunningTokensEndWithTheReplyHoweverItEnds) {
  std::string words = "word";
  for (int i = 0; i < 2000; ++i) words += " word";
  Api api(words);
  api.script().pause = std::chrono::milliseconds(10);
  {
    RawClient client(api.port());
    client.send(post("/v1/chat/completions", dump(chat_body({{"stream", true}}))));
    for (int i = 0; i < 4; ++i) client.read_until("data: ");
    EXPECT_GT(metric(api, "tensorfold:generation_tokens_running"), 0);
  }
  EXPECT_TRUE(soon([&] { return metric(api, "tensorfold:client_disconnections_total") == 1; }));
  EXPECT_EQ(metric(api, "tensorfold:generation_tokens_running"), 0);
  EXPECT_EQ(api.call("/v1/chat/completions", chat_body({{"stop", "word word w"}, {"n", 2}})).status, 200);
  EXPECT_TRUE(soon([&] { return metric(api, "tensorfold:generation_tokens_running") == 0; }));
  const Json health = Json::parse(api.get_reply("/health").body);
  EXPECT_EQ(health["completion_tokens_total"], metric(api, "tensorfold:generation_tokens_total"));
}

TEST(Metrics, AndTheLogKnowWhoHadNoKey) {
  ServerOptions options = logging();
  options.keys = {"secret-one"};
  ::testing::internal::CaptureStdout();
  std::string id;
  {
    Api api("x", 1, options);
    const RawReply reply = api.get_reply("/v1/models", "Authorization: Bearer secret-two\r\n");
    EXPECT_EQ(reply.status, 401);
    const size_t at = reply.head.find("X-Request-Id: ");
    ASSERT_NE(at, std::string::npos);
    id = reply.head.substr(at + 14, reply.head.find("\r\n", at) - at - 14);
    const std::string text = api.get_reply("/metrics", "x-api-key: secret-one\r\n").body;
    EXPECT_THAT(text, HasSubstr("tensorfold:requests_total{key=\"none\",status=\"401\"} 1"));
  }
  const std::string log = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(log, Not(HasSubstr("secret")));
  const auto lines = entries(log);
  ASSERT_EQ(lines.size(), 1U) << log;
  EXPECT_EQ(lines[0]["id"], id);
  EXPECT_EQ(lines[0]["status"], 401);
  EXPECT_EQ(lines[0]["path"], "/v1/models");
}

TEST(RequestLog, TellsPathStatusTimeAndChoice) {
  ::testing::internal::CaptureStdout();
  {
    Api api("one two", 1, logging());
    const Json reply = api.chat(no_thinking({{"n", 2}}));
    const RawReply refused = api.call("/v1/completions", {{"prompt", 5}});
    EXPECT_THAT(refused.head, HasSubstr("X-Request-Id: req_"));
    EXPECT_TRUE(soon([&] { return metric(api, "tensorfold:generation_tokens_running") == 0; }));
  }
  const auto lines = entries(::testing::internal::GetCapturedStdout());
  ASSERT_EQ(lines.size(), 3U);
  std::vector<int> choices;
  for (const Json& line : lines) {
    EXPECT_THAT(line["time"].get<std::string>(), ::testing::MatchesRegex("....-..-..T..:..:..[.]...Z"));
    if (line["kind"] == "refused") {
      EXPECT_EQ(line["status"], 400);
      EXPECT_EQ(line["path"], "/v1/completions");
      EXPECT_THAT(line["id"].get<std::string>(), ::testing::StartsWith("req_"));
      continue;
    }
    EXPECT_EQ(line["kind"], "reply");
    EXPECT_EQ(line["status"], 200);
    EXPECT_EQ(line["path"], "/v1/chat/completions");
    EXPECT_EQ(line["finish"], "stop");
    choices.push_back(line["choice"]);
  }
  EXPECT_THAT(choices, ::testing::UnorderedElementsAre(0, 1));
}

TEST(RequestLog, SaysThatTheShutdownEndedAReply) {
  ::testing::internal::CaptureStdout();
  {
    std::string words = "word";
    for (int i = 0; i < 200; ++i) words += " word";
    Api api(words, 1, logging());
    api.script().pause = std::chrono::milliseconds(50);
    RawClient client(api.port());
    client.send(post("/v1/chat/completions", dump(chat_body({{"stream", true}}))));
    client.read_until("data: ");
  }
  const auto lines = entries(::testing::internal::GetCapturedStdout());
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0]["finish"].get<std::string>(), ::testing::AnyOf("shutdown", "left"));
}

TEST(Decisions, AreOneRequestThatGeneratesNothing) {
  ::testing::internal::CaptureStdout();
  size_t prompt_tokens = 0;
  {
    Api api("A", 1, logging());
    // Each label that is not among the likeliest is forced in a run of its own.
    api.writer = [](const engine::Request& request) {
      const int32_t forced = request.constraint ? request.constraint->forced({}) : -1;
      return forced < 0 ? std::string("A") : demo_tokenizer().decode(std::vector<int32_t>{forced});
    };
    const Json options = {{"id", "q"}, {"type", "choice"}, {"question", "Which?"}, {"options", {"a", "b", "c"}}};
    Json other = options;
    other["id"] = "r";
    const Json reply = Json::parse(api.call("/v1/decisions", {{"input", "x"}, {"questions", {options, other}}}).body);
    ASSERT_TRUE(reply.contains("answers")) << dump(reply);
    EXPECT_NEAR(reply["answers"]["q"]["probabilities"]["b"], 1.0 / 3, 1e-6);
    prompt_tokens = reply["usage"]["prompt_tokens"];
    EXPECT_GE(api.engine().submitted(), 4);
    EXPECT_EQ(metric(api, "tensorfold:generation_tokens_total"), 0);
    EXPECT_EQ(metric(api, "tensorfold:generation_tokens_running"), 0);
    EXPECT_EQ(metric(api, "tensorfold:decisions_total"), 1);
    EXPECT_EQ(metric(api, "tensorfold:request_latency_seconds_count"), 1);
    EXPECT_EQ(metric(api, "tensorfold:prompt_tokens_total"), static_cast<double>(prompt_tokens));
  }
  const auto lines = entries(::testing::internal::GetCapturedStdout());
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["kind"], "decisions");
  EXPECT_EQ(lines[0]["questions"], 2);
  EXPECT_EQ(lines[0]["prompt_tokens"], prompt_tokens);
  EXPECT_FALSE(lines[0].contains("reply_tokens"));
}

}  // namespace
}  // namespace tensorfold::server
