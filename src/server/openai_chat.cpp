// POST /v1/chat/completions.
#include <ctime>
#include <utility>

#include "server/openai_format.h"
#include "server/openai_replies.h"
#include "server/routes.h"

namespace tensorfold::server {
namespace {

/// One choice of a stream. Text of one kind within a step travels in one chunk.
class ChatChoice final : public ReplySink {
 public:
  ChatChoice(std::shared_ptr<StreamedReplies> stream, size_t index, const text::Tokenizer& tokenizer)
      : stream_(std::move(stream)), index_(index), tokenizer_(tokenizer) {}

  void on_begin() override {
    stream_->begin();
    send({{"role", "assistant"}});
  }
  void on_reasoning(std::string_view text) override { add("reasoning_content", text); }
  void on_content(std::string_view text) override { add("content", text); }
  void on_call(size_t index, const std::string& id, const std::string& name) override {
    Json call = {{"index", index}, {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", ""}}}};
    send_call(std::move(call));
  }
  void on_arguments(size_t index, std::string_view piece) override {
    send_call({{"index", index}, {"function", {{"arguments", piece}}}});
  }
  void on_logprobs(const engine::TokenLogprobs& token) override {
    logprobs_.push_back(chat_logprob(tokenizer_, token));
  }
  void on_step_end() override { flush(); }
  void on_end(const ReplySummary& summary) override {
    flush();
    Json choice = choice_of(Json::object());
    choice["finish_reason"] = summary.finish_reason;
    stream_->end(std::move(choice), summary);
  }
  void on_failure(const ApiError& error) override { stream_->failure(error); }
  [[nodiscard]] size_t backlog() const override { return stream_->backlog(); }

 private:
  /// A chunk's choice; it takes the log-probabilities that wait.
  Json choice_of(Json delta) {
    Json choice = {{"index", index_}, {"delta", std::move(delta)}, {"finish_reason", nullptr}};
    if (!logprobs_.empty()) choice["logprobs"]["content"] = std::exchange(logprobs_, Json::array());
    return choice;
  }
  void send(Json delta) { stream_->send(choice_of(std::move(delta))); }
  void send_call(Json call) {
    flush();
    Json delta;
    delta["tool_calls"].push_back(std::move(call));
    send(std::move(delta));
  }
  void add(const char* kind, std::string_view text) {
    if (kind_ != kind) flush();
    kind_ = kind;
    text_ += text;
  }
  void flush() {
    if (text_.empty()) return;
    Json delta;
    delta[kind_] = std::exchange(text_, {});
    send(std::move(delta));
  }

  std::shared_ptr<StreamedReplies> stream_;
  size_t index_;
  const text::Tokenizer& tokenizer_;
  std::string kind_;
  std::string text_;
  Json logprobs_ = Json::array();
};

Json whole_choice(size_t index, const CollectedReply& reply, const text::Tokenizer& tokenizer) {
  Json message = {{"role", "assistant"}};
  const bool silent = reply.content.empty() && (!reply.calls.empty() || !reply.reasoning.empty());
  message["content"] = silent ? Json(nullptr) : Json(reply.content);
  if (!reply.reasoning.empty()) message["reasoning_content"] = reply.reasoning;
  for (const CollectedCall& call : reply.calls) message["tool_calls"].push_back(call_object(call));
  Json choice = {{"index", index},
                 {"message", std::move(message)},
                 {"logprobs", nullptr},
                 {"finish_reason", reply.summary.finish_reason}};
  if (!reply.logprobs.empty()) {
    Json content = Json::array();
    for (const auto& token : reply.logprobs) content.push_back(chat_logprob(tokenizer, token));
    choice["logprobs"] = {{"content", std::move(content)}};
  }
  return choice;
}

}  // namespace

void handle_chat(Service& service, const std::shared_ptr<Exchange>& exchange, const Client& client) {
  CheckedRequest checked = service.check_chat(parse_body(exchange->request().body));
  checked.origin = {new_id("chatcmpl-"), client.label, exchange->request().path};
  Heading heading{checked.origin.id, "chat.completion", std::time(nullptr), checked.model};
  const text::Tokenizer& tokenizer = *service.model().tokenizer;
  Service::Sinks sinks;
  if (checked.fields.stream) {
    heading.object += ".chunk";
    const auto stream = std::make_shared<StreamedReplies>(exchange, checked, heading);
    for (size_t i = 0; i < static_cast<size_t>(checked.fields.choices); ++i) {
      sinks.push_back(std::make_shared<ChatChoice>(stream, i, tokenizer));
    }
  } else {
    sinks = whole_sinks(std::make_shared<WholeReplies>(exchange, checked, heading,
                                                       [&tokenizer](size_t index, const CollectedReply& reply) {
                                                         return whole_choice(index, reply, tokenizer);
                                                       }),
                        checked.fields.choices);
  }
  run_for(service, exchange, checked, sinks);
}

}  // namespace tensorfold::server
