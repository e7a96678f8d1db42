// POST /v1/responses, GET and DELETE /v1/responses/{id}: OpenAI's Responses API over the same replies.
#include <algorithm>
#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "server/api_error.h"
#include "server/openai_format.h"
#include "server/response_store.h"
#include "server/responses_request.h"
#include "server/routes.h"

namespace tensorfold::server {
namespace {

/// A response under way: its frame, and the output items as they come.
struct Draft {
  std::string id;
  CheckedRequest checked;
  Json frame;  ///< every field of the response but status, output and usage
  Json items;  ///< the conversation before the reply
  bool store = true;
};

Json frame_of(const Json& body, const Draft& draft) {
  const auto asked = [&body](const char* name, Json otherwise) {
    const Json* value = member(body, name);
    return value != nullptr ? *value : std::move(otherwise);
  };
  return {{"id", draft.id},
          {"object", "response"},
          {"created_at", std::time(nullptr)},
          {"model", draft.checked.model},
          {"error", nullptr},
          {"instructions", asked("instructions", nullptr)},
          {"max_output_tokens", asked("max_output_tokens", nullptr)},
          {"metadata", asked("metadata", Json::object())},
          {"parallel_tool_calls", draft.checked.tools.parallel},
          {"previous_response_id", asked("previous_response_id", nullptr)},
          {"reasoning", asked("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
          {"store", draft.store},
          {"temperature", draft.checked.fields.sampling.temperature},
          {"text", asked("text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", asked("tool_choice", "auto")},
          {"tools", asked("tools", Json::array())},
          {"top_p", draft.checked.fields.sampling.top_p},
          {"truncation", "disabled"},
          {"user", asked("user", nullptr)}};
}

Json response_usage(const ReplySummary& summary) {
  const engine::ReplyStatistics& counts = summary.statistics;
  return {{"input_tokens", counts.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", counts.cached_tokens}}},
          {"output_tokens", counts.reply_tokens},
          {"output_tokens_details", {{"reasoning_tokens", summary.reasoning_tokens}}},
          {"total_tokens", counts.prompt_tokens + counts.reply_tokens}};
}

Json response_object(const Draft& draft, const std::string& status, Json output) {
  Json response = draft.frame;
  response["status"] = status;
  response["incomplete_details"] = nullptr;
  response["output"] = std::move(output);
  response["usage"] = nullptr;
  return response;
}

/// The finished response; kept in the store when asked.
Json finished_response(const Draft& draft, Json output, const ReplySummary& summary, ResponseStore& store) {
  const bool cut = summary.finish_reason == "length";
  const std::string status = cut ? "incomplete" : "completed";
  for (Json& item : output) item["status"] = cut && &item == &output.back() ? "incomplete" : "completed";
  Json response = response_object(draft, status, std::move(output));
  if (cut) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
  response["usage"] = response_usage(summary);
  response["tensorfold"] = statistics_of(draft.checked, summary);
  if (draft.store) {
    Json items = draft.items;
    for (const Json& item : response["output"]) items.push_back(item);
    store.put(draft.id, {response, std::move(items), draft.items.size()});
  }
  return response;
}

Json reasoning_item(const std::string& text) {
  Json content = Json::array();
  if (!text.empty()) content.push_back({{"type", "reasoning_text"}, {"text", text}});
  return {{"type", "reasoning"}, {"id", new_id("rs_")}, {"summary", Json::array()}, {"content", std::move(content)}};
}

Json text_part(const std::string& text) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
}

Json message_item(const std::string& text) {
  Json content = Json::array();
  if (!text.empty()) content.push_back(text_part(text));
  return {{"type", "message"}, {"id", new_id("msg_")}, {"role", "assistant"}, {"content", std::move(content)}};
}

Json call_item(const CollectedCall& call) {
  return {{"type", "function_call"},
          {"id", new_id("fc_")},
          {"call_id", call.id},
          {"name", call.name},
          {"arguments", call.arguments}};
}

Json output_of(const CollectedReply& reply) {
  Json output = Json::array();
  if (!reply.reasoning.empty()) output.push_back(reasoning_item(reply.reasoning));
  if (!reply.content.empty() || (reply.calls.empty() && reply.reasoning.empty())) {
    output.push_back(message_item(reply.content));
  }
  for (const CollectedCall& call : reply.calls) output.push_back(call_item(call));
  return output;
}

/// The events of a streamed response. One item is open at a time.
class ResponseStream final : public ReplySink {
 public:
  ResponseStream(std::shared_ptr<Exchange> exchange, Draft draft, ResponseStore& store)
      : exchange_(std::move(exchange)), draft_(std::move(draft)), store_(store) {}

  void on_begin() override {
    begin_events(*exchange_);
    const Json response = response_object(draft_, "in_progress", Json::array());
    send("response.created", {{"response", response}});
    send("response.in_progress", {{"response", response}});
  }
  void on_reasoning(std::string_view text) override {
    if (kind_ != "reasoning") {
      open("reasoning", reasoning_item(""));
      open_part({{"type", "reasoning_text"}, {"text", ""}});
    }
    text_ += text;
    send_in_part("response.reasoning_text.delta", {{"delta", text}});
  }
  void on_content(std::string_view text) override {
    if (kind_ != "message") {
      open("message", message_item(""));
      open_part(text_part(""));
    }
    text_ += text;
    send_in_part("response.output_text.delta", {{"delta", text}, {"logprobs", Json::array()}});
  }
  void on_call(size_t, const std::string& id, const std::string& name) override {
    open("function_call", call_item({id, name, ""}));
  }
  void on_arguments(size_t, std::string_view piece) override {
    text_ += piece;
    send_in_item("response.function_call_arguments.delta", {{"delta", piece}});
  }
  void on_end(const ReplySummary& summary) override {
    close();
    if (output_.empty()) {
      open("message", message_item(""));
      close();
    }
    const Json response = finished_response(draft_, std::move(output_), summary, store_);
    send(response["status"] == "completed" ? "response.completed" : "response.incomplete", {{"response", response}});
    exchange_->end_stream();
  }
  void on_failure(const ApiError& error) override {
    Json response = response_object(draft_, "failed", std::move(output_));
    response["error"] = {{"code", error.type()}, {"message", error.what()}};
    send("response.failed", {{"response", std::move(response)}});
    exchange_->end_stream();
  }
  [[nodiscard]] size_t backlog() const override { return exchange_->unsent(); }

 private:
  void send(const std::string& type, Json fields) {
    Json data = {{"type", type}, {"sequence_number", sequence_++}};
    data.update(fields);
    exchange_->write("event: " + type + "\ndata: " + dump(data) + "\n\n");
  }
  void send_in_item(const std::string& type, Json fields) {
    Json data = {{"item_id", item_["id"]}, {"output_index", output_.size()}};
    data.update(fields);
    send(type, std::move(data));
  }
  void send_in_part(const std::string& type, Json fields) {
    Json data = {{"content_index", 0}};
    data.update(fields);
    send_in_item(type, std::move(data));
  }
  void open(const std::string& kind, Json item) {
    close();
    kind_ = kind;
    item_ = std::move(item);
    item_["status"] = "in_progress";
    send("response.output_item.added", {{"output_index", output_.size()}, {"item", item_}});
  }
  void open_part(Json part) { send_in_part("response.content_part.added", {{"part", std::move(part)}}); }
  void close() {
    if (kind_.empty()) return;
    if (kind_ == "function_call") {
      item_["arguments"] = text_;
      send_in_item("response.function_call_arguments.done", {{"arguments", text_}, {"name", item_["name"]}});
    } else if (!text_.empty()) {
      const bool reasoning = kind_ == "reasoning";
      Json part = reasoning ? Json{{"type", "reasoning_text"}, {"text", text_}} : text_part(text_);
      send_in_part(reasoning ? "response.reasoning_text.done" : "response.output_text.done", {{"text", text_}});
      send_in_part("response.content_part.done", {{"part", part}});
      item_["content"].push_back(std::move(part));
    }
    item_["status"] = "completed";
    send("response.output_item.done", {{"output_index", output_.size()}, {"item", item_}});
    output_.push_back(std::move(item_));
    text_.clear();
    kind_.clear();
  }

  std::shared_ptr<Exchange> exchange_;
  Draft draft_;
  ResponseStore& store_;
  int64_t sequence_ = 0;
  std::string kind_;
  Json item_;
  std::string text_;
  Json output_ = Json::array();
};

/// The conversation: what the previous response left, then this request's input.
Json conversation(const Json& body, const ResponseStore& store) {
  Json items = Json::array();
  if (const auto previous = string_field(body, "previous_response_id")) {
    auto stored = store.find(*previous);
    if (!stored) {
      throw bad_request(fmt::format("there is no stored response '{}'", *previous), "previous_response_id");
    }
    items = std::move(stored->items);
  }
  for (const Json& item : input_items(body)) items.push_back(item);
  return items;
}

void check_metadata(const Json& body) {
  const Json* metadata = member(body, "metadata");
  if (metadata == nullptr) return;
  const bool fits = metadata->is_object() && metadata->size() <= 16 &&
                    std::all_of(metadata->begin(), metadata->end(), [](const Json& one) { return one.is_string(); });
  if (!fits) throw bad_request("metadata must be an object of at most 16 strings", "metadata");
}

}  // namespace

void handle_response(Service& service, ResponseStore& store, const std::shared_ptr<Exchange>& exchange,
                     const Client& client) {
  const Json body = parse_body(exchange->request().body);
  if (!body.is_object()) throw bad_request("the body must be a JSON object");
  check_metadata(body);
  Draft draft;
  draft.items = conversation(body, store);
  draft.checked = service.check_chat(chat_from_responses(body, draft.items), {"input", "max_output_tokens"});
  draft.id = new_id("resp_");
  draft.checked.origin = {draft.id, client.label, exchange->request().path};
  draft.store = boolean_field(body, "store").value_or(true);
  draft.frame = frame_of(body, draft);
  const CheckedRequest checked = draft.checked;
  std::shared_ptr<ReplySink> sink;
  if (checked.fields.stream) {
    sink = std::make_shared<ResponseStream>(exchange, std::move(draft), store);
  } else {
    sink = std::make_shared<CollectedReply>([exchange, draft, &store](const CollectedReply& reply) {
      HttpReply answer;
      if (reply.failure) {
        answer.status = reply.failure->status();
        answer.body = error_body(*reply.failure, Dialect::openai);
      } else {
        answer.body = dump(finished_response(draft, output_of(reply), reply.summary, store));
      }
      exchange->reply(std::move(answer));
    });
  }
  run_for(service, exchange, checked, {sink});
}

}  // namespace tensorfold::server
