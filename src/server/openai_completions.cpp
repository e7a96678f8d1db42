// POST /v1/completions: raw text or token ids in, text out, no template.
#include <ctime>
#include <utility>

#include "server/openai_format.h"
#include "server/openai_replies.h"
#include "server/routes.h"

namespace tensorfold::server {
namespace {

Json choice_of(size_t index, const std::string& text, Json logprobs, Json finish_reason) {
  return {
      {"index", index}, {"text", text}, {"logprobs", std::move(logprobs)}, {"finish_reason", std::move(finish_reason)}};
}

class CompletionChoice final : public ReplySink {
 public:
  CompletionChoice(std::shared_ptr<StreamedReplies> stream, size_t index, const text::Tokenizer& tokenizer)
      : stream_(std::move(stream)), index_(index), tokenizer_(tokenizer) {}
  void on_begin() override { stream_->begin(); }
  void on_reasoning(std::string_view) override {}
  void on_content(std::string_view text) override { text_ += text; }
  void on_call(size_t, const std::string&, const std::string&) override {}
  void on_arguments(size_t, std::string_view) override {}
  void on_logprobs(const engine::TokenLogprobs& token) override { logprobs_.push_back(token); }
  void on_step_end() override {
    if (text_.empty()) return;
    Json logprobs = take_logprobs();
    offset_ += text_.size();
    stream_->send(choice_of(index_, std::exchange(text_, {}), std::move(logprobs), nullptr));
  }
  void on_end(const ReplySummary& summary) override {
    stream_->end(choice_of(index_, "", take_logprobs(), summary.finish_reason), summary);
  }
  void on_failure(const ApiError& error) override { stream_->failure(error); }
  [[nodiscard]] size_t backlog() const override { return stream_->backlog(); }

 private:
  Json take_logprobs() {
    if (logprobs_.empty()) return nullptr;
    return completion_logprobs(tokenizer_, std::exchange(logprobs_, {}), offset_);
  }

  std::shared_ptr<StreamedReplies> stream_;
  size_t index_;
  const text::Tokenizer& tokenizer_;
  std::string text_;
  size_t offset_ = 0;
  std::vector<engine::TokenLogprobs> logprobs_;
};

}  // namespace

void handle_completion(Service& service, const std::shared_ptr<Exchange>& exchange, const Client& client) {
  CheckedRequest checked = service.check_completion(parse_body(exchange->request().body));
  checked.origin = {new_id("cmpl-"), client.label, exchange->request().path};
  const Heading heading{checked.origin.id, "text_completion", std::time(nullptr), checked.model};
  const text::Tokenizer& tokenizer = *service.model().tokenizer;
  Service::Sinks sinks;
  if (checked.fields.stream) {
    const auto stream = std::make_shared<StreamedReplies>(exchange, checked, heading);
    for (size_t i = 0; i < static_cast<size_t>(checked.fields.choices); ++i) {
      sinks.push_back(std::make_shared<CompletionChoice>(stream, i, tokenizer));
    }
  } else {
    const auto make_choice = [&tokenizer](size_t index, const CollectedReply& reply) {
      Json logprobs = nullptr;
      if (!reply.logprobs.empty()) logprobs = completion_logprobs(tokenizer, reply.logprobs, 0);
      return choice_of(index, reply.content, std::move(logprobs), reply.summary.finish_reason);
    };
    sinks =
        whole_sinks(std::make_shared<WholeReplies>(exchange, checked, heading, make_choice), checked.fields.choices);
  }
  run_for(service, exchange, checked, sinks);
}

}  // namespace tensorfold::server
