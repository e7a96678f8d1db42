// The API over sockets, with the demonstration model's tokenizer and template and a scripted engine.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "server/prompt_renderer.h"
#include "server/raw_client.h"
#include "server/scripted_engine.h"
#include "server/server.h"
#include "shared_data.h"

namespace tensorfold::server {

inline const text::Tokenizer& demo_tokenizer() {
  static const text::Tokenizer tokenizer = text::Tokenizer::load(testing::project_path("models/demo").string());
  return tokenizer;
}

/// Ids that the scripted model has beyond its tokenizer's, as real ones do.
constexpr int64_t padding_rows = 8;

/// A server whose every reply is `text`, then the end of the turn.
class Api {
 public:
  /// `templates`: the folder of another chat template than the demonstration model's.
  explicit Api(std::string text, size_t tokens_a_round = 1, ServerOptions options = {}, int32_t context = 4096,
               const std::string& templates = testing::project_path("models/demo").string())
      : renderer_(demo_tokenizer(), templates),
        engine_(
            [this](const engine::Request& request) {
              Script script = script_;
              if (writer) script.tokens = demo_tokenizer().encode(writer(request));
              if (!open_end) script.tokens.push_back(2);
              return script;
            },
            context) {
    script_.tokens = demo_tokenizer().encode(text);
    script_.tokens_a_round = tokens_a_round;
    options.http.port = 0;
    options.service.names = {"demo", "other"};
    if (options.service.log_format == RequestLogFormat::text) options.service.log_format = RequestLogFormat::off;
    ServedModel model;
    model.engine = &engine_;
    model.tokenizer = &demo_tokenizer();
    model.renderer = &renderer_;
    model.end_tokens = {0, 2};
    model.vocabulary = static_cast<int64_t>(demo_tokenizer().vocabulary_size()) + padding_rows;
    server_ = std::make_unique<Server>(model, options);
  }
  [[nodiscard]] uint16_t port() const { return server_->port(); }
  ScriptedEngine& engine() { return engine_; }
  Script& script() { return script_; }

  RawReply call(const std::string& path, const Json& body) {
    RawClient client(port());
    client.send(post(path, dump(body)));
    return client.read_reply();
  }
  RawReply get_reply(const std::string& path, const std::string& more_headers = "") {
    RawClient client(port());
    client.send(get(path, more_headers));
    return client.read_reply();
  }
  Json chat(Json body) {
    if (!body.contains("messages")) body["messages"] = Json::array({{{"role", "user"}, {"content", "Hi"}}});
    return Json::parse(call("/v1/chat/completions", body).body);
  }
  std::function<std::string(const engine::Request&)> writer;
  bool open_end = false;

 private:
  PromptRenderer renderer_;
  Script script_;
  ScriptedEngine engine_;
  std::unique_ptr<Server> server_;
};

inline Json no_thinking(Json body = Json::object()) {
  body["chat_template_kwargs"] = {{"enable_thinking", false}};
  return body;
}

/// The data of a stream's events; comments are left out.
inline std::vector<std::string> events_of(const std::string& stream) {
  std::vector<std::string> events;
  size_t at = 0;
  while (at < stream.size()) {
    const size_t end = stream.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << "an event without an end";
    if (end == std::string::npos) break;
    const std::string event = stream.substr(at, end - at);
    const size_t data = event.rfind("data: ", 0) == 0 ? 0 : event.find("\ndata: ");
    if (data != std::string::npos) events.push_back(event.substr(event.find("data: ") + 6));
    at = end + 2;
  }
  return events;
}

/// What the chunks of a chat stream add up to.
struct Assembled {
  std::string reasoning;
  std::string content;
  std::string finish;
  Json usage;
  size_t chunks = 0;
};

inline Assembled assemble(const std::string& stream) {
  Assembled whole;
  const auto events = events_of(stream);
  EXPECT_EQ(events.empty() ? "" : events.back(), "[DONE]");
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const Json chunk = Json::parse(event);
    ++whole.chunks;
    if (chunk.contains("usage")) whole.usage = chunk["usage"];
    if (chunk["choices"].empty()) continue;
    const Json& choice = chunk["choices"][0];
    EXPECT_TRUE(choice.contains("finish_reason"));
    whole.reasoning += choice["delta"].value("reasoning_content", "");
    whole.content += choice["delta"].value("content", "");
    if (!choice["finish_reason"].is_null()) whole.finish = choice["finish_reason"];
  }
  return whole;
}

}  // namespace tensorfold::server
