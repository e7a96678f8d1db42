#include "server/openai_replies.h"

#include <utility>

#include "server/openai_format.h"
#include "server/routes.h"

namespace tensorfold::server {

Json Heading::with(Json choices) const {
  return {{"id", id}, {"object", object}, {"created", created}, {"model", model}, {"choices", std::move(choices)}};
}

std::string Heading::opening() const {
  std::string text = dump(with(Json::array()));
  text.resize(text.size() - 2);  // "]}"
  return text;
}

void StreamedReplies::begin() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(begun_, true)) begin_events(*exchange_);
}

void StreamedReplies::send(const Json& choice) {
  exchange_->write("data: " + chunk_opening_ + dump(choice) + "]}\n\n");
}

void StreamedReplies::end(Json choice, const ReplySummary& summary) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  summaries_.push_back(summary);
  const bool last = --waiting_ == 0;
  Json choices = Json::array();
  choices.push_back(std::move(choice));
  Json chunk = heading_.with(std::move(choices));
  if (summary.stop_sequence) chunk["stop_sequence"] = *summary.stop_sequence;
  if (last && !checked_.fields.include_usage) chunk["usage"] = usage_of(summaries_);
  chunk["tensorfold"] = statistics_of(checked_, summary);
  exchange_->write(sse(chunk));
  if (!last) return;
  if (checked_.fields.include_usage) {
    Json usage = heading_.with(Json::array());
    usage["usage"] = usage_of(summaries_);
    exchange_->write(sse(usage));
  }
  exchange_->write("data: [DONE]\n\n");
  exchange_->end_stream();
}

void StreamedReplies::failure(const ApiError& error) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(failed_, true)) return;
  exchange_->write("data: " + error_body(error, Dialect::openai) + "\n\ndata: [DONE]\n\n");
  exchange_->end_stream();
}

WholeReplies::WholeReplies(std::shared_ptr<Exchange> exchange, CheckedRequest checked, Heading heading,
                           MakeChoice make_choice)
    : exchange_(std::move(exchange)),
      checked_(std::move(checked)),
      heading_(std::move(heading)),
      make_choice_(std::move(make_choice)),
      choices_(static_cast<size_t>(checked_.fields.choices)),
      summaries_(choices_.size()),
      waiting_(choices_.size()) {}

void WholeReplies::done(size_t index, const CollectedReply& reply) {
  const std::lock_guard lock(mutex_);
  if (reply.failure) {
    failure_ = reply.failure;
  } else {
    choices_[index] = make_choice_(index, reply);
    summaries_[index] = reply.summary;
  }
  if (--waiting_ > 0) return;
  HttpReply answer;
  if (failure_) {
    answer.status = failure_->status();
    answer.body = error_body(*failure_, Dialect::openai);
  } else {
    Json body = heading_.with(choices_);
    if (summaries_[0].stop_sequence) body["stop_sequence"] = *summaries_[0].stop_sequence;
    body["usage"] = usage_of(summaries_);
    body["tensorfold"] = statistics_of(checked_, summaries_[0]);
    answer.body = dump(body);
  }
  exchange_->reply(std::move(answer));
}

Service::Sinks whole_sinks(std::shared_ptr<WholeReplies> replies, int32_t choices) {
  Service::Sinks sinks;
  for (size_t i = 0; i < static_cast<size_t>(choices); ++i) {
    sinks.push_back(
        std::make_shared<CollectedReply>([replies, i](const CollectedReply& reply) { replies->done(i, reply); }));
  }
  return sinks;
}

}  // namespace tensorfold::server
