// Pieces of OpenAI's replies that several routes write alike.
#pragma once

#include <string>
#include <vector>

#include "server/json_body.h"
#include "server/reply_sink.h"
#include "server/service.h"

namespace tensorfold::server {

/// "data: …" of a server-sent event.
std::string sse(const Json& data);

/// The usage object of one reply, or of several choices over one prompt.
Json usage_of(const std::vector<ReplySummary>& choices);

/// Our own block beside the reply: rates, drafts, token_sha, token ids on request.
Json statistics_of(const CheckedRequest& checked, const ReplySummary& summary);

/// One token's log-probability in chat form.
Json chat_logprob(const text::Tokenizer& tokenizer, const engine::TokenLogprobs& token);

/// Log-probabilities in the form of text completions.
Json completion_logprobs(const text::Tokenizer& tokenizer, const std::vector<engine::TokenLogprobs>& tokens,
                         size_t text_offset);

/// A tool call as chat messages carry it.
Json call_object(const CollectedCall& call);

}  // namespace tensorfold::server
