// What every route shares: the served model, the checks of a request, and starting its replies.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/generation.h"
#include "server/generation_fields.h"
#include "server/identifier.h"
#include "server/json_body.h"
#include "server/messages.h"
#include "server/metrics.h"
#include "server/prompt_renderer.h"
#include "server/reply_constraint.h"
#include "server/request_log.h"
#include "server/structured_output.h"
#include "server/work_pool.h"
#include "text/tokenizer.h"

namespace tensorfold::server {

/// The model behind the server; everything pointed to outlives the service.
struct ServedModel {
  engine::Engine* engine = nullptr;
  const text::Tokenizer* tokenizer = nullptr;
  const PromptRenderer* renderer = nullptr;
  std::vector<int32_t> end_tokens;
  int64_t vocabulary = 0;  ///< ids a prompt may hold
};

struct ServiceOptions {
  std::vector<std::string> names;  ///< ids the server answers to, the served name first
  GenerationDefaults defaults;
  int32_t queue_limit = 256;  ///< requests beyond the engine's lanes that may wait; further ones get a 429
  int64_t seed_salt = 0;
  size_t threads = 4;
  RequestLogFormat log_format = RequestLogFormat::text;
};

/// A checked request, ready to run: one reply text for each choice.
struct CheckedRequest {
  GenerationFields fields;
  Prompt prompt;
  ToolSettings tools;
  ReplyTextSettings text;
  int32_t thinking_budget = 0;                      ///< 0: none
  int32_t forced_token = -1;                        ///< >= 0: the first token of the reply
  std::optional<CallGate> gate;                     ///< a call must be made
  std::shared_ptr<text::grammar::Matcher> grammar;  ///< what the answer must be; null: free
  bool thinking = false;
  std::string effort;
  std::string model;  ///< the id to answer with
  std::chrono::steady_clock::time_point arrival;
  RequestOrigin origin;  ///< for the log
};

/// What a dialect calls the fields that a message about the context speaks of.
struct FieldNames {
  std::string prompt = "messages";
  std::string limit;  ///< of the reply's tokens; empty: the field that set it
};

class Service {
 public:
  Service(ServedModel model, ServiceOptions options);
  ~Service();

  /// Checks a chat body (OpenAI's form; the other dialects are translated to it) as far as it can be checked before a
  /// token is drawn. Throws ApiError.
  [[nodiscard]] CheckedRequest check_chat(const Json& body, const FieldNames& names = {}) const;
  /// Checks a text completion: `prompt` is a string or token ids. Throws ApiError.
  [[nodiscard]] CheckedRequest check_completion(const Json& body) const;
  /// Renders the prompt of a chat body without the checks of a reply. Throws ApiError.
  [[nodiscard]] Prompt render(const Json& body) const;

  using Sinks = std::vector<std::shared_ptr<ReplySink>>;
  /// Starts one reply a sink (choice j draws with its own seed). Throws ApiError when the engine or the queue refuses,
  /// with nothing started. The returned functions cancel and resume all of them.
  struct Running {
    std::vector<std::shared_ptr<Generation>> choices;
    void cancel() const;
    void resume() const;
  };
  Running start(const CheckedRequest& checked, const Sinks& sinks);
  /// start() for a part of a larger request that was admitted as a whole: no limit, nothing in the log and metrics.
  Running start_unreported(const CheckedRequest& checked, const Sinks& sinks);
  /// Throws ApiError (429) when as many requests wait as may.
  void admit() const;

  [[nodiscard]] const ServedModel& model() const { return model_; }
  [[nodiscard]] const ServiceOptions& options() const { return options_; }
  [[nodiscard]] int32_t context() const { return model_.engine->status().context; }
  Metrics& metrics() { return metrics_; }
  WorkPool& pool() { return pool_; }
  RequestLog& log() { return log_; }
  /// The id to answer with: the asked one when the server has it, else the served name.
  [[nodiscard]] std::string answering_name(const Json& body) const;

 private:
  /// Who is told about the replies of a request; each may be null.
  struct Accounting {
    std::function<void(size_t tokens)> counted;  ///< more of a running reply
    std::function<void(size_t choice, const ReplySummary& summary, bool cancelled)> ended;
    std::function<void(size_t tokens)> withdrawn;  ///< instead of `ended`: another choice could not start
  };
  Running launch(const CheckedRequest& checked, const Sinks& sinks, const Accounting& accounting);
  void check_room(CheckedRequest& checked, const FieldNames& names) const;
  [[nodiscard]] RenderSettings render_settings(const Json& body) const;
  [[nodiscard]] CallGate gate_for(const CheckedRequest& checked) const;
  [[nodiscard]] std::shared_ptr<text::grammar::Matcher> grammar_for(const Json& body) const;
  [[nodiscard]] const TokensByBytes& tokens_by_bytes() const;
  [[nodiscard]] GrammarPlacement place_grammar(const CheckedRequest& checked) const;
  /// `placement`: of the grammar, if there is one.
  std::shared_ptr<engine::Constraint> make_constraint(const CheckedRequest& checked,
                                                      const std::optional<GrammarPlacement>& placement);

  ServedModel model_;
  ServiceOptions options_;
  Metrics metrics_;
  RequestLog log_;
  std::mutex admission_;
  /// Replies that the engine has not done with; shared with them, since the last may outlive the service.
  std::shared_ptr<std::atomic<int32_t>> places_ = std::make_shared<std::atomic<int32_t>>(0);
  mutable std::once_flag tokens_made_;
  mutable TokensByBytes tokens_;  ///< made when a call is first held to its form
  mutable std::once_flag vocabulary_made_;
  mutable std::shared_ptr<const text::grammar::Vocabulary> vocabulary_;  ///< made when a grammar is first asked for
  mutable GrammarStore grammars_;
  WorkPool pool_;
};

}  // namespace tensorfold::server
