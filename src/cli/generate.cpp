// tensorfold generate MODEL --prompt TEXT
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>

#include <fmt/format.h>

#include "base/console.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/loaded_model.h"
#include "cli/model_options.h"
#include "server/service.h"

namespace tensorfold::cli {
namespace {

struct GenerateState {
  std::string model;
  std::string prompt;
  bool raw = false;
  bool json = false;
  std::optional<uint64_t> seed;
  RunOptions run;
  ReplyOptions replies;
};

/// Prints the reply as it comes (thinking to standard error), or collects it for --json.
class Printer final : public server::ReplySink {
 public:
  explicit Printer(bool quiet) : quiet_(quiet) {}
  void on_reasoning(std::string_view piece) override {
    reasoning += piece;
    if (!quiet_) write(stderr, piece);
  }
  void on_content(std::string_view piece) override {
    if (!quiet_ && text.empty() && !reasoning.empty()) write(stderr, "\n\n");
    text += piece;
    if (!quiet_) write(stdout, piece);
  }
  void on_call(size_t, const std::string&, const std::string&) override {}
  void on_arguments(size_t, std::string_view) override {}
  void on_end(const server::ReplySummary& ended) override {
    if (!quiet_) write(stdout, "\n");
    const std::lock_guard lock(mutex_);
    summary = ended;
    done_.notify_all();
  }
  void on_failure(const server::ApiError& error) override {
    const std::lock_guard lock(mutex_);
    failure = error.what();
    done_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return summary || failure; });
  }

  std::string text;
  std::string reasoning;
  std::optional<server::ReplySummary> summary;
  std::optional<std::string> failure;

 private:
  static void write(std::FILE* stream, std::string_view piece) {
    std::fwrite(piece.data(), 1, piece.size(), stream);
    std::fflush(stream);
  }
  bool quiet_;
  std::mutex mutex_;
  std::condition_variable done_;
};

double rate(double tokens, double seconds) { return seconds > 0.0 ? tokens / seconds : 0.0; }

std::string report(const Printer& printer) {
  const server::ReplySummary& summary = *printer.summary;
  const engine::ReplyStatistics& counts = summary.statistics;
  server::Json object = {
      {"text", printer.text},
      {"token_ids", summary.tokens},
      {"token_sha", server::token_sha(summary.tokens)},
      {"prompt_tokens", counts.prompt_tokens},
      {"finish_reason", summary.finish_reason},
      {"prefill_tokens_per_second", rate(counts.prompt_tokens - counts.cached_tokens, counts.prefill_seconds)},
      {"decode_tokens_per_second", rate(counts.reply_tokens - 1, counts.decode_seconds)},
      {"rounds", counts.rounds},
      {"drafted", counts.drafted},
      {"accepted", counts.accepted}};
  if (!printer.reasoning.empty()) object["reasoning"] = printer.reasoning;
  return server::dump(object);
}

int generate(const GenerateState& state) {
  check_reply_options(state.replies);
  const std::unique_ptr<LoadedModel> loaded = load_model(state.model, state.run);
  for (const std::string& note : loaded->notes) say_line(stderr, "[tensorfold] " + note);
  server::ServiceOptions options;
  options.names = {served_name(state.model)};
  options.defaults = generation_defaults(loaded->directory, state.replies);
  options.log_format = server::RequestLogFormat::off;
  server::Service service(loaded->served(), options);

  server::Json body = {{"draft", state.run.drafts}};
  if (state.seed) body["seed"] = static_cast<int64_t>(*state.seed & 0x7FFF'FFFF'FFFF'FFFF);
  server::CheckedRequest checked;
  if (state.raw) {
    body["prompt"] = state.prompt;
    checked = service.check_completion(body);
  } else {
    body["messages"] = server::Json::array({{{"role", "user"}, {"content", state.prompt}}});
    checked = service.check_chat(body);
  }
  const auto printer = std::make_shared<Printer>(state.json);
  service.start(checked, {printer});
  printer->wait();
  if (printer->failure) fail(ErrorKind::internal, "{}", *printer->failure);
  if (state.json) fmt::print("{}\n", report(*printer));
  return 0;
}

}  // namespace

Command generate_command() {
  const auto state = std::make_shared<GenerateState>();
  Command command;
  command.name = "generate";
  command.summary = "Print one reply";
  command.description =
      "The reply goes to standard output as it is made, thinking to standard error. With --json one object is printed "
      "at the end.";
  command.positionals.push_back({"MODEL", "directory or owner/name", &state->model});
  const std::string group = "Prompt";
  command.options = {
      {"--prompt", "TEXT", "what to answer", group, &state->prompt, {}},
      {"--raw", "", "feed the text as it is, special tokens read, without the chat template", group, &state->raw, {}},
      {"--json", "", "print one JSON object: text, token ids, counts, speeds", group, &state->json, {}},
      {"--seed", "N", "of the draws; default: from the prompt", group, &state->seed, {}},
  };
  append(command.options, reply_options(state->replies));
  append(command.options, run_options(state->run));
  command.run = [state] {
    if (state->prompt.empty()) fail(ErrorKind::invalid_request, "--prompt is needed");
    return generate(*state);
  };
  return command;
}

}  // namespace tensorfold::cli
