// POST /v1/messages and /v1/messages/count_tokens: Anthropic's dialect over the same replies.
#include <utility>

#include "server/anthropic_request.h"
#include "server/routes.h"

namespace tensorfold::server {
namespace {

std::string event(const Json& data) {
  return "event: " + data.at("type").get<std::string>() + "\ndata: " + dump(data) + "\n\n";
}

Json usage_block(const ReplySummary& summary) {
  const engine::ReplyStatistics& counts = summary.statistics;
  return {{"input_tokens", counts.prompt_tokens - counts.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", counts.cached_tokens},
          {"output_tokens", counts.reply_tokens},
          {"output_tokens_details", {{"thinking_tokens", summary.reasoning_tokens}}}};
}

std::string stop_reason(const ReplySummary& summary) {
  if (summary.finish_reason == "tool_calls") return "tool_use";
  if (summary.finish_reason == "length") return "max_tokens";
  return summary.stop_sequence ? "stop_sequence" : "end_turn";
}

Json text_or_null(const std::optional<std::string>& text) { return text ? Json(*text) : Json(nullptr); }

/// Arguments are JSON text that we wrote ourselves; a call cut by the limit may still be half of one.
Json input_of(const std::string& arguments) {
  Json parsed = Json::parse(arguments, nullptr, false);
  return parsed.is_object() ? parsed : Json::object();
}

class MessageStream final : public ReplySink {
 public:
  MessageStream(std::shared_ptr<Exchange> exchange, std::string id, std::string model, size_t prompt_tokens)
      : exchange_(std::move(exchange)), id_(std::move(id)), model_(std::move(model)), prompt_tokens_(prompt_tokens) {}

  void on_begin() override {
    begin_events(*exchange_, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
    Json message = {{"id", id_},
                    {"type", "message"},
                    {"role", "assistant"},
                    {"model", model_},
                    {"content", Json::array()},
                    {"stop_reason", nullptr},
                    {"stop_sequence", nullptr},
                    {"usage", {{"input_tokens", prompt_tokens_}, {"output_tokens", 0}}}};
    send({{"type", "message_start"}, {"message", std::move(message)}});
  }
  void on_reasoning(std::string_view text) override {
    open("thinking", {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
    delta({{"type", "thinking_delta"}, {"thinking", text}});
  }
  void on_content(std::string_view text) override {
    open("text", {{"type", "text"}, {"text", ""}});
    delta({{"type", "text_delta"}, {"text", text}});
  }
  void on_call(size_t, const std::string& id, const std::string& name) override {
    close();
    open("tool_use", {{"type", "tool_use"}, {"id", id}, {"name", name}, {"input", Json::object()}});
  }
  void on_arguments(size_t, std::string_view piece) override {
    delta({{"type", "input_json_delta"}, {"partial_json", piece}});
  }
  void on_end(const ReplySummary& summary) override {
    close();
    send({{"type", "message_delta"},
          {"delta", {{"stop_reason", stop_reason(summary)}, {"stop_sequence", text_or_null(summary.stop_sequence)}}},
          {"usage", usage_block(summary)}});
    send({{"type", "message_stop"}});
    exchange_->end_stream();
  }
  void on_failure(const ApiError& error) override {
    exchange_->write("event: error\ndata: " + error_body(error, Dialect::anthropic) + "\n\n");
    exchange_->end_stream();
  }
  [[nodiscard]] size_t backlog() const override { return exchange_->unsent(); }

 private:
  void send(const Json& data) { exchange_->write(event(data)); }
  void open(const std::string& kind, Json block) {
    if (open_ == kind) return;
    close();
    open_ = kind;
    send({{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(block)}});
  }
  void delta(Json piece) { send({{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(piece)}}); }
  void close() {
    if (open_.empty()) return;
    open_.clear();
    send({{"type", "content_block_stop"}, {"index", index_}});
    ++index_;
  }

  std::shared_ptr<Exchange> exchange_;
  std::string id_;
  std::string model_;
  size_t prompt_tokens_;
  std::string open_;
  size_t index_ = 0;
};

Json whole_message(const std::string& id, const CheckedRequest& checked, const CollectedReply& reply) {
  Json content = Json::array();
  if (!reply.reasoning.empty()) {
    content.push_back({{"type", "thinking"}, {"thinking", reply.reasoning}, {"signature", ""}});
  }
  if (!reply.content.empty()) content.push_back({{"type", "text"}, {"text", reply.content}});
  for (const CollectedCall& call : reply.calls) {
    content.push_back(
        {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", input_of(call.arguments)}});
  }
  return {{"id", id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", checked.model},
          {"content", std::move(content)},
          {"stop_reason", stop_reason(reply.summary)},
          {"stop_sequence", text_or_null(reply.summary.stop_sequence)},
          {"usage", usage_block(reply.summary)}};
}

}  // namespace

void handle_messages(Service& service, const std::shared_ptr<Exchange>& exchange, const Client& client) {
  CheckedRequest checked = service.check_chat(chat_from_messages(parse_body(exchange->request().body), false));
  checked.origin = {new_id("msg_"), client.label, exchange->request().path};
  std::shared_ptr<ReplySink> sink;
  if (checked.fields.stream) {
    sink = std::make_shared<MessageStream>(exchange, checked.origin.id, checked.model, checked.prompt.ids.size());
  } else {
    sink = std::make_shared<CollectedReply>([exchange, checked](const CollectedReply& reply) {
      HttpReply answer;
      if (reply.failure) {
        answer.status = reply.failure->status();
        answer.body = error_body(*reply.failure, Dialect::anthropic);
      } else {
        answer.body = dump(whole_message(checked.origin.id, checked, reply));
      }
      exchange->reply(std::move(answer));
    });
  }
  run_for(service, exchange, checked, {sink});
}

void handle_count_tokens(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const Json chat = chat_from_messages(parse_body(exchange->request().body), true);
  HttpReply reply;
  reply.body = dump({{"input_tokens", service.render(chat).ids.size()}});
  exchange->reply(std::move(reply));
}

}  // namespace tensorfold::server
