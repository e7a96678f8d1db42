// tensorfold serve MODEL
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "base/console.h"
#include "base/error.h"
#include "cli/commands.h"
#ifdef TENSORFOLD_HAS_HUB
#include "cli/hub_access.h"
#endif
#include "cli/loaded_model.h"
#include "cli/model_options.h"
#include "cli/version.h"
#include "server/server.h"

namespace tensorfold::cli {
namespace {

struct ServeState {
  std::string model;
  std::string host = "127.0.0.1";
  int32_t port = 8080;
  std::string name;
  std::vector<std::string> aliases;
  std::vector<std::string> keys;
  std::string key_file;
  bool metrics_open = false;
  std::vector<std::string> cors;
  int32_t queue = 256;
  std::string log_format = "text";
  bool update_check = true;
  RunOptions run;
  ReplyOptions replies;
};

std::vector<Option> endpoint_options(ServeState& state) {
  const std::string group = "Endpoint";
  return {
      {"--host", "ADDRESS", "listen here; 0.0.0.0 is every interface", group, &state.host, {}},
      {"--port", "N", "0: any free port", group, &state.port, {}},
      {"--name", "ID", "model id to serve under; default: the last part of MODEL", group, &state.name, {}},
      {"--alias", "ID", "further id to answer to", group, &state.aliases, {}},
      {"--api-key", "KEY", "ask for this key; also TENSORFOLD_API_KEY", group, &state.keys, {}},
      {"--api-key-file",
       "PATH",
       "keys, one a line, as 'label: key'; mode 0600; read again when it changes",
       group,
       &state.key_file,
       {}},
      {"--metrics-open", "", "metrics need no key", group, &state.metrics_open, {}},
      {"--cors", "ORIGIN", "let pages of this origin call the server ('*': any)", group, &state.cors, {}},
      {"--queue", "N", "waiting requests beyond which new ones are told to come back (429)", group, &state.queue, {}},
      {"--log-format", "FORM", "one line a request", group, &state.log_format, {"text", "json", "off"}},
      {"--no-update-check", "", "do not look for a newer release", group, &state.update_check, {}, true},
  };
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

int64_t seed_salt() {
  const std::string text = environment("TENSORFOLD_SEED_SALT");
  if (text.empty()) return 0;
  char* end = nullptr;
  const long long salt = std::strtoll(text.c_str(), &end, 10);
  if (*end != '\0') fail(ErrorKind::invalid_request, "TENSORFOLD_SEED_SALT must be an integer");
  return salt;
}

/// A browser sends an origin exactly as scheme://host or scheme://host:port; nothing else could ever be equal to one.
void check_origin(const std::string& origin) {
  if (origin == "*" || origin == "null") return;
  const size_t scheme = origin.find("://");
  const bool fits = scheme != std::string::npos && scheme > 0 && scheme + 3 < origin.size() &&
                    origin.find_first_of("/?# ,", scheme + 3) == std::string::npos;
  if (!fits) {
    fail(ErrorKind::invalid_request, "--cors '{}' is no origin: write https://host, https://host:port or *", origin);
  }
}

void check_endpoint(const ServeState& state) {
  if (state.host.empty()) {
    fail(ErrorKind::invalid_request,
         "--host is empty: 127.0.0.1 lets programs of this machine in, 0.0.0.0 is every interface");
  }
  if (state.port < 0 || state.port > 65535) fail(ErrorKind::invalid_request, "--port must lie between 0 and 65535");
  for (const std::string& alias : state.aliases) {
    if (alias.empty()) fail(ErrorKind::invalid_request, "--alias is empty");
  }
  for (const std::string& origin : state.cors) check_origin(origin);
  if (state.queue < 1) fail(ErrorKind::invalid_request, "--queue must be at least 1");
}

server::ServerOptions server_options(const ServeState& state, const LoadedModel& loaded) {
  server::ServerOptions options;
  options.http.host = state.host;
  options.http.port = static_cast<uint16_t>(state.port);
  options.http.server_name = fmt::format("tensorfold/{}", version());
  options.service.names = {state.name.empty() ? served_name(state.model) : state.name};
  for (const std::string& alias : state.aliases) {
    auto& names = options.service.names;
    if (std::find(names.begin(), names.end(), alias) == names.end()) names.push_back(alias);
  }
  options.service.defaults = generation_defaults(loaded.directory, state.replies);
  options.service.queue_limit = state.queue;
  options.service.seed_salt = seed_salt();
  options.service.threads = std::max(4U, std::thread::hardware_concurrency());
  options.service.log_format = state.log_format == "json"  ? server::RequestLogFormat::json
                               : state.log_format == "off" ? server::RequestLogFormat::off
                                                           : server::RequestLogFormat::text;
  options.keys = state.keys;
  options.key_environment = environment("TENSORFOLD_API_KEY");
  options.key_file = state.key_file;
  options.metrics_open = state.metrics_open;
  options.cors = state.cors;
  return options;
}

void say(const std::string& line) { say_line(stdout, "[tensorfold] " + line); }

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0; }

void introduce(const ServeState& state, const LoadedModel& loaded, const server::ServerOptions& options,
               uint16_t port) {
  const server::GenerationDefaults& defaults = options.service.defaults;
  const engine::EngineStatus status = loaded.engine->status();
  for (const std::string& note : loaded.notes) say(note);
  if (!status.drafts_off_reason.empty()) say("drafts are off: " + status.drafts_off_reason);
  const std::string sampling = defaults.temperature <= 0.0
                                   ? std::string("greedy")
                                   : fmt::format("temperature {}, top_p {}, top_k {}, min_p {}", defaults.temperature,
                                                 defaults.top_p, defaults.top_k, defaults.min_p);
  const int32_t native = loaded.model->info().native_context;
  const std::string context = status.context < native ? fmt::format("{} of the model's {}", status.context, native)
                                                      : std::to_string(status.context);
  say(fmt::format("serving {} at http://{}:{} on {}: {}, drafts {}, context {}, loaded in {:.1f} s",
                  options.service.names.front(), state.host, port, loaded.backend_name, sampling,
                  state.run.drafts && status.drafts_off_reason.empty() ? "on" : "off", context, loaded.load_seconds));
  if (defaults.thinking && loaded.renderer->has_template()) say("thinking is on; --no-thinking turns it off");
  const bool keys = !options.keys.empty() || !options.key_environment.empty() || !options.key_file.empty();
  if (!keys && !is_loopback(state.host)) {
    say(fmt::format("warning: anyone who reaches {} can use this server; --api-key asks for a key", state.host));
  }
}

/// Waits for signals on a thread of its own. Before open() a request to stop ends the process at once (nothing has been
/// promised to anyone yet), after it stop_requested() returns; a second one ends the process in any case.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set_, signal);
    // Blocked before any other thread starts, so that every thread inherits it.
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::thread([this] { run(); }).detach();
  }
  void open(std::function<void()> reload) {
    const std::lock_guard lock(mutex_);
    reload_ = std::move(reload);
  }
  void wait_for_stop() {
    std::unique_lock lock(mutex_);
    stop_.wait(lock, [this] { return stopped_; });
    reload_ = [] {};
  }

 private:
  void run() {
    for (;;) {
      int signal = 0;
      sigwait(&set_, &signal);
      const std::lock_guard lock(mutex_);
      if (signal == SIGHUP) {
        if (reload_) reload_();
        continue;
      }
      if (!reload_ || stopped_) std::_Exit(128 + signal);
      stopped_ = true;
      stop_.notify_all();
    }
  }
  sigset_t set_{};
  std::mutex mutex_;
  std::condition_variable stop_;
  std::function<void()> reload_;
  bool stopped_ = false;
};

/// What the engine does now, once a second, on one line that is drawn over.
class LiveLine {
 public:
  LiveLine(server::Server& server, const engine::Engine& engine) : server_(server), engine_(engine) {
    const char* off = std::getenv("TENSORFOLD_NO_LIVE");
    if (::isatty(STDOUT_FILENO) != 1 || off != nullptr) return;
    thread_ = std::thread([this] { run(); });
  }
  ~LiveLine() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

 private:
  void run() {
    engine::EngineStatus before = engine_.status();
    auto then = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::seconds(1), [this] { return ended_; })) {
      const engine::EngineStatus status = engine_.status();
      const auto now = std::chrono::steady_clock::now();
      const double seconds = std::chrono::duration<double>(now - then).count();
      const auto rate = [seconds](uint64_t count, uint64_t last) {
        return static_cast<double>(count - std::min(count, last)) / seconds;
      };
      server_.log().live(fmt::format("{} running, {} waiting, {} connections, {:.1f} tokens/s, prompts {:.0f} tokens/s",
                                     status.running, status.waiting, server_.connections(),
                                     rate(status.reply_tokens, before.reply_tokens),
                                     rate(status.prompt_tokens, before.prompt_tokens)));
      before = status;
      then = now;
    }
    server_.log().live("");
  }
  server::Server& server_;
  const engine::Engine& engine_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  std::thread thread_;
};

int serve(const ServeState& state) {
  check_endpoint(state);
  check_reply_options(state.replies);
  static Signals signals;  // its thread runs until the process ends
#ifdef TENSORFOLD_HAS_HUB
  const auto release_check = begin_release_check(!state.update_check);
#endif
  const std::unique_ptr<LoadedModel> loaded = load_model(state.model, state.run);
  const server::ServerOptions options = server_options(state, *loaded);
  server::Server server(loaded->served(), options);
  signals.open([&server] { server.reload_keys(); });
  introduce(state, *loaded, options, server.port());
  {
    const LiveLine live(server, *loaded->engine);
    signals.wait_for_stop();
  }
  say("stopping");
  return 0;
}

}  // namespace

Command serve_command() {
  const auto state = std::make_shared<ServeState>();
  Command command;
  command.name = "serve";
  command.summary = "Serve a model over the OpenAI and Anthropic APIs";
  command.description = "MODEL is a directory or a Hugging Face repository (owner/name). Ctrl-C ends the server.";
  command.positionals.push_back({"MODEL", "directory or owner/name", &state->model});
  command.options = endpoint_options(*state);
  append(command.options, reply_options(state->replies));
  append(command.options, run_options(state->run));
  command.run = [state] { return serve(*state); };
  return command;
}

}  // namespace tensorfold::cli
