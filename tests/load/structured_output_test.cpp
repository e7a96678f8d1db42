// Structured output by the demonstration model: what a grammar lets through is valid by a validator that shares nothing
// with it, and the same with and without drafts. TENSORFOLD_SCHEMA_PROMPTS=5 asks every schema with five prompts;
// without it every eighth schema is asked once.
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/loaded_model.h"
#include "cli/model_options.h"
#include "load/schema_validator.h"
#include "load/schemas.h"
#include "server/raw_client.h"
#include "server/server.h"
#include "shared_data.h"

namespace tensorfold::server {
namespace {

constexpr const char* prompts[] = {"Give me a JSON object for Mia, who is 31 years old and lives in Oslo.",
                                   "What is 17 + 25?", "Tell me a story about a fox.", "What is the weather in Paris?",
                                   "Write a short poem about the sea."};

class StructuredOutput : public ::testing::Test {
 protected:
  void SetUp() override {
    cli::RunOptions run;
    run.drafter = testing::project_path("models/demo-dflash2").string();
    loaded_ = cli::load_model(testing::project_path("models/demo").string(), run);
    ServerOptions options;
    options.http.port = 0;
    options.service.names = {"demo"};
    options.service.log_format = RequestLogFormat::off;
    server_ = std::make_unique<Server>(loaded_->served(), options);
  }

  Json ask(const Json& body) {
    RawClient client(server_->port());
    client.send(post("/v1/chat/completions", dump(body)));
    return Json::parse(client.read_reply().body);
  }

  /// One schema and prompt: drafted and serial, greedy for even numbers, drawn for odd ones.
  void ask_both(size_t schema, size_t prompt) {
    const Json parsed = Json::parse(testing::schemas[schema]);
    Json body = {{"messages", Json::array({{{"role", "user"}, {"content", prompts[prompt]}}})},
                 {"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", parsed}}}}},
                 {"temperature", (schema + prompt) % 2},
                 {"seed", schema * 7 + prompt},
                 {"max_tokens", 120},
                 {"chat_template_kwargs", {{"enable_thinking", false}}}};
    const Json drafted = ask(body);
    body["draft"] = false;
    const Json serial = ask(body);
    const std::string where = std::string(testing::schemas[schema]) + "\n" + prompts[prompt];
    if (!drafted.contains("choices") || !serial.contains("choices")) {
      ADD_FAILURE() << where << "\n" << dump(drafted) << "\n" << dump(serial);
      return;
    }
    EXPECT_EQ(drafted["tensorfold"]["token_sha"], serial["tensorfold"]["token_sha"]) << where;
    ++asked_;
    drafts_ += drafted["tensorfold"]["accepted"].get<int>();
    const Json& choice = drafted["choices"][0];
    if (choice["finish_reason"] != "stop") return;
    ++finished_;
    const std::string text = choice["message"]["content"];
    const Json value = Json::parse(text, nullptr, false);
    if (value.is_discarded()) {
      ADD_FAILURE() << where << "\nis not JSON: " << text;
      return;
    }
    EXPECT_EQ(testing::SchemaValidator(parsed).problem(value), "") << where << "\n" << text;
  }

  std::unique_ptr<cli::LoadedModel> loaded_;
  std::unique_ptr<Server> server_;
  std::atomic<int> asked_{0};
  std::atomic<int> finished_{0};
  std::atomic<int> drafts_{0};
};

TEST_F(StructuredOutput, FinishedRepliesAreValidAndDraftedEqualsSerial) {
  const char* setting = std::getenv("TENSORFOLD_SCHEMA_PROMPTS");
  const size_t prompt_count = setting != nullptr ? std::min<size_t>(std::stoul(setting), std::size(prompts)) : 0;
  std::vector<std::pair<size_t, size_t>> work;
  for (size_t schema = 0; schema < std::size(testing::schemas); ++schema) {
    for (size_t prompt = 0; prompt < prompt_count; ++prompt) work.emplace_back(schema, prompt);
    if (prompt_count == 0 && schema % 8 == 1) work.emplace_back(schema, 0);
  }
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (size_t one = next++; one < work.size(); one = next++) ask_both(work[one].first, work[one].second);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%d replies, %d finished, %d drafts accepted\n", asked_.load(), finished_.load(), drafts_.load());
  EXPECT_EQ(asked_, static_cast<int>(work.size()));
  EXPECT_GT(finished_ * 2, asked_.load()) << "most replies must end by themselves, or little is checked";
}

TEST(SchemaValidator, FindsWhatIsWrong) {
  using testing::SchemaValidator;
  const auto wrong = [](const char* schema, const char* value) {
    return !SchemaValidator(Json::parse(schema)).problem(Json::parse(value)).empty();
  };
  EXPECT_TRUE(wrong(R"({"type":"integer"})", "1.5"));
  EXPECT_FALSE(wrong(R"({"type":"integer"})", "2"));
  EXPECT_TRUE(wrong(R"({"type":"object","required":["a"]})", "{}"));
  EXPECT_TRUE(wrong(R"({"properties":{"a":{"maxLength":1}}})", R"({"a":"éé"})"));
  EXPECT_FALSE(wrong(R"({"properties":{"a":{"maxLength":2}}})", R"({"a":"éé"})"));
  EXPECT_TRUE(wrong(R"({"oneOf":[{"type":"integer"},{"minimum":1}]})", "3"));
  EXPECT_TRUE(wrong(R"({"prefixItems":[{"const":1}],"items":{"const":2}})", "[1,3]"));
  EXPECT_TRUE(wrong(R"({"additionalProperties":{"type":"null"},"properties":{"a":{}}})", R"({"a":1,"b":1})"));
  EXPECT_TRUE(wrong(R"({"pattern":"^a$"})", "\"ab\""));
}

}  // namespace
}  // namespace tensorfold::server
