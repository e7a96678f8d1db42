#include "server/openai_format.h"

#include <algorithm>
#include <utility>

namespace tensorfold::server {
namespace {

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

/// A token's text for reading: its bytes with what is not UTF-8 replaced.
std::string readable(const text::Tokenizer& tokenizer, int32_t token) {
  return tokenizer.decode(std::span<const int32_t>(&token, 1));
}

Json logprob_entry(const text::Tokenizer& tokenizer, int32_t token, float logprob) {
  return {
      {"token", readable(tokenizer, token)}, {"logprob", logprob}, {"bytes", bytes_of(tokenizer.token_bytes(token))}};
}

}  // namespace

std::string sse(const Json& data) { return "data: " + dump(data) + "\n\n"; }

Json usage_of(const std::vector<ReplySummary>& choices) {
  int32_t prompt = 0;
  int32_t cached = 0;
  int32_t reply = 0;
  int32_t reasoning = 0;
  for (const ReplySummary& choice : choices) {
    prompt = std::max(prompt, choice.statistics.prompt_tokens);
    cached = std::max(cached, choice.statistics.cached_tokens);
    reply += choice.statistics.reply_tokens;
    reasoning += choice.reasoning_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", reply},
          {"total_tokens", prompt + reply},
          {"prompt_tokens_details", {{"cached_tokens", cached}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning}}}};
}

Json statistics_of(const CheckedRequest& checked, const ReplySummary& summary) {
  const engine::ReplyStatistics& counts = summary.statistics;
  const double decode = counts.decode_seconds;
  Json block = {{"enable_thinking", checked.thinking},
                {"reasoning_effort", checked.effort.empty() ? Json(nullptr) : Json(checked.effort)},
                {"sampling", checked.fields.sampling.temperature <= 0.0 ? "greedy" : "exact"},
                {"drafts", checked.fields.draft},
                {"tokens_per_second", decode > 0.0 ? (counts.reply_tokens - 1) / decode : 0.0},
                {"seconds", summary.seconds},
                {"time_to_first_token", summary.first_token},
                {"queue_s", counts.queue_seconds},
                {"prefill_s", counts.prefill_seconds},
                {"decode_s", counts.decode_seconds},
                {"cached", counts.cached_tokens},
                {"rounds", counts.rounds},
                {"drafted", counts.drafted},
                {"accepted", counts.accepted},
                {"token_sha", token_sha(summary.tokens)}};
  for (const auto& [name, pair] : counts.by_drafter) {
    block["drafters"][name] = {{"drafted", pair.first}, {"accepted", pair.second}};
  }
  if (checked.fields.return_token_ids) block["token_ids"] = summary.tokens;
  return block;
}

Json chat_logprob(const text::Tokenizer& tokenizer, const engine::TokenLogprobs& token) {
  Json entry = logprob_entry(tokenizer, token.token, token.logprob);
  entry["top_logprobs"] = Json::array();
  for (const auto& [id, logprob] : token.top) entry["top_logprobs"].push_back(logprob_entry(tokenizer, id, logprob));
  return entry;
}

Json completion_logprobs(const text::Tokenizer& tokenizer, const std::vector<engine::TokenLogprobs>& tokens,
                         size_t text_offset) {
  Json block = {{"tokens", Json::array()},
                {"token_logprobs", Json::array()},
                {"top_logprobs", Json::array()},
                {"text_offset", Json::array()}};
  for (const engine::TokenLogprobs& token : tokens) {
    const std::string text = readable(tokenizer, token.token);
    block["tokens"].push_back(text);
    block["token_logprobs"].push_back(token.logprob);
    Json top = Json::object();
    // Tokens that read alike share a name: the likeliest keeps it. The drawn token is there, likely or not.
    for (const auto& [id, logprob] : token.top) {
      if (const std::string name = readable(tokenizer, id); !top.contains(name)) top[name] = logprob;
    }
    if (!token.top.empty()) top[text] = token.logprob;
    block["top_logprobs"].push_back(std::move(top));
    block["text_offset"].push_back(text_offset);
    text_offset += text.size();
  }
  return block;
}

Json call_object(const CollectedCall& call) {
  return {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

}  // namespace tensorfold::server
