#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <fmt/format.h>
#include <malloc.h>

#include "server/api_error.h"
#include "server/chat_page.h"
#include "server/routes.h"

namespace tensorfold::server {
namespace {

constexpr std::chrono::seconds ping_after{5};
constexpr size_t large_body = size_t{4} << 20;

/// The path without "/v1" and a trailing slash: "/chat/completions".
std::string plain_path(std::string_view path) {
  if (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  if (path.rfind("/v1/", 0) == 0) path.remove_prefix(3);
  return std::string(path);
}

bool is_metrics(std::string_view path) { return path == "/metrics"; }
bool is_open(std::string_view path) { return path == "/health" || path == "/"; }

}  // namespace

void begin_events(Exchange& exchange, const std::string& ping) {
  HttpReply head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  exchange.begin_stream(std::move(head), ping, ping_after);
}

void run_for(Service& service, const std::shared_ptr<Exchange>& exchange, const CheckedRequest& checked,
             const Service::Sinks& sinks) {
  const auto running = std::make_shared<Service::Running>(service.start(checked, sinks));
  exchange->on_drained([running] { running->resume(); });
  exchange->on_gone([running] { running->cancel(); });
}

namespace {

/// Adds CORS headers to whatever the exchange answers, and counts statuses by key label.
class AnsweringExchange final : public Exchange {
 public:
  AnsweringExchange(std::shared_ptr<Exchange> inner, std::vector<std::pair<std::string, std::string>> headers,
                    std::function<void(int)> answered)
      : inner_(std::move(inner)), headers_(std::move(headers)), answered_(std::move(answered)) {}
  [[nodiscard]] const HttpRequest& request() const override { return inner_->request(); }
  void reply(HttpReply reply) override {
    prepare(reply);
    inner_->reply(std::move(reply));
  }
  void begin_stream(HttpReply head, std::string ping, std::chrono::seconds after) override {
    prepare(head);
    inner_->begin_stream(std::move(head), std::move(ping), after);
  }
  void write(std::string bytes) override { inner_->write(std::move(bytes)); }
  void end_stream() override { inner_->end_stream(); }
  [[nodiscard]] size_t unsent() const override { return inner_->unsent(); }
  [[nodiscard]] bool gone() const override { return inner_->gone(); }
  void on_gone(std::function<void()> left) override { inner_->on_gone(std::move(left)); }
  void on_drained(std::function<void()> drained) override { inner_->on_drained(std::move(drained)); }

 private:
  void prepare(HttpReply& reply) {
    reply.headers.insert(reply.headers.end(), headers_.begin(), headers_.end());
    if (answered_) answered_(reply.status);
  }
  std::shared_ptr<Exchange> inner_;
  std::vector<std::pair<std::string, std::string>> headers_;
  std::function<void(int)> answered_;
};

/// Notices an engine that has work and does none of it. Looked at by each poll of /health, on one thread.
class ProgressWatch {
 public:
  explicit ProgressWatch(std::chrono::milliseconds patience) : patience_(patience) {}
  /// True when nothing moved for the patience while requests ran or waited.
  bool stalled(const engine::EngineStatus& status) {
    const uint64_t work = status.rounds + status.prompt_tokens + status.reply_tokens;
    const auto now = std::chrono::steady_clock::now();
    if (status.running + status.waiting == 0 || work != work_) changed_ = now;
    work_ = work;
    return now - changed_ > patience_;
  }

 private:
  std::chrono::milliseconds patience_;
  uint64_t work_ = 0;
  std::chrono::steady_clock::time_point changed_ = std::chrono::steady_clock::now();
};

HttpReply error_reply(const ApiError& error, Dialect dialect) {
  HttpReply reply;
  reply.status = error.status();
  reply.body = error_body(error, dialect);
  if (error.status() == 429 || error.status() == 503) reply.headers.emplace_back("Retry-After", "1");
  if (error.status() == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

/// The headers that a page may send: whichever it asks for, since clients' libraries add their own.
std::string allowed_headers(const HttpRequest& request) {
  constexpr size_t longest = 4096;
  constexpr std::string_view beside_letters = "!#$%&'*+-.^_`|~0123456789, ";  // RFC 9110 5.6.2, and a list's separators
  const std::string_view asked = request.header("access-control-request-headers").value_or("");
  const bool fits = !asked.empty() && asked.size() <= longest && std::all_of(asked.begin(), asked.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || beside_letters.find(c) != std::string_view::npos;
  });
  return fits ? std::string(asked) : "Authorization, Content-Type, X-Api-Key, Anthropic-Version, Anthropic-Beta";
}

}  // namespace

class Server::Implementation {
 public:
  Implementation(ServedModel model, ServerOptions options)
      : options_(std::move(options)),
        keys_(options_.keys, options_.key_environment, options_.key_file),
        service_(std::move(model), options_.service),
        http_(
            options_.http, [this](std::shared_ptr<Exchange> exchange) { accept(std::move(exchange)); },
            [this](const HttpRequest& request) { return screen(request); },
            [this](int status, const std::string& message, const HttpRequest* request) {
              return unreadable(status, message, request);
            }) {
    http_.start();
  }

  ~Implementation() {
    stopping_ = true;
    service_.model().engine->stop();
    service_.pool().stop();
    http_.stop(std::chrono::seconds(5));
  }

  [[nodiscard]] uint16_t port() const { return http_.port(); }
  [[nodiscard]] size_t connections() const { return http_.connections(); }
  void reload_keys() { keys_.reload(); }
  RequestLog& log() { return service_.log(); }

 private:
  using Headers = std::vector<std::pair<std::string, std::string>>;

  /// On the sockets' thread, before the body is read: who has no key sends none.
  std::optional<HttpReply> screen(const HttpRequest& request) {
    const std::string path = plain_path(request.path);
    if (request.method == "OPTIONS" || is_open(path) || (is_metrics(path) && options_.metrics_open))
      return std::nullopt;
    if (!keys_.required() || label_of(request)) return std::nullopt;
    const ApiError error(401, "invalid_request_error", "a valid API key is needed", "invalid_api_key");
    HttpReply reply = error_reply(error, dialect_of(request.path));
    for (auto& header : cors_headers(request)) reply.headers.push_back(std::move(header));
    reply.headers.emplace_back("X-Request-Id", note_refusal(request.path, error));
    return reply;
  }

  /// What the HTTP layer refuses by itself.
  std::string unreadable(int status, const std::string& message, const HttpRequest* request) {
    const ApiError error(status, "invalid_request_error", message);
    const std::string path = request != nullptr ? request->path : std::string();
    note_refusal(path, error);
    return error_body(error, dialect_of(path));
  }

  /// On the sockets' thread: a refusal of a client whose key, if any, is not known. The id in the log.
  std::string note_refusal(const std::string& path, const ApiError& error) {
    const RequestOrigin origin{new_id("req_"), {}, path};
    if (keys_.required()) service_.metrics().replied({}, error.status());
    // A log that is read slowly must not hold up the sockets.
    service_.pool().post([this, origin, error] { service_.log().refused(origin, error.status(), error.what()); });
    return origin.id;
  }

  std::optional<std::string> label_of(const HttpRequest& request) {
    return keys_.label_of(presented_key(request.header("authorization"), request.header("x-api-key")));
  }

  [[nodiscard]] Headers cors_headers(const HttpRequest& request) const {
    const auto origin = request.header("origin");
    if (options_.cors.empty() || !origin) return {};
    const bool all = std::find(options_.cors.begin(), options_.cors.end(), "*") != options_.cors.end();
    if (!all && std::find(options_.cors.begin(), options_.cors.end(), *origin) == options_.cors.end()) return {};
    return {{"Access-Control-Allow-Origin", std::string(*origin)},
            {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"},
            {"Vary", "Origin, Access-Control-Request-Headers"}};
  }

  /// On the sockets' thread: health is answered here, everything else by the pool.
  void accept(std::shared_ptr<Exchange> inner) {
    const HttpRequest& request = inner->request();
    Headers headers = cors_headers(request);
    Client client;
    std::function<void(int)> answered;
    if (keys_.required()) {
      client.label = label_of(request).value_or("");
      answered = [this, label = client.label](int status) { service_.metrics().replied(label, status); };
    }
    auto exchange = std::make_shared<AnsweringExchange>(std::move(inner), headers, std::move(answered));
    if (exchange->request().method == "OPTIONS") {
      preflight(*exchange, !headers.empty());
      return;
    }
    if (plain_path(exchange->request().path) == "/health") {
      handle_health(*exchange, !client.label.empty());
      return;
    }
    service_.pool().post([this, exchange = std::move(exchange), client = std::move(client)]() mutable {
      const bool large = exchange->request().body.size() >= large_body;
      route(exchange, client);
      exchange.reset();
      // The allocator would keep what a large body's many pieces took, and more with every such request.
      if (large) malloc_trim(0);
    });
  }

  static void preflight(Exchange& exchange, bool allowed) {
    HttpReply reply;
    reply.status = 204;
    if (allowed) {
      reply.headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                       {"Access-Control-Allow-Headers", allowed_headers(exchange.request())},
                       {"Access-Control-Max-Age", "600"}};
    }
    exchange.reply(std::move(reply));
  }

  void handle_health(Exchange& exchange, bool with_key) {
    const engine::EngineStatus status = service_.model().engine->status();
    const bool stalled = progress_.stalled(status);
    Json body = {{"status", stopping_ ? "stopping" : stalled ? "stalled" : "ok"}};
    if (!keys_.required() || with_key) {
      body["model"] = service_.options().names.front();
      body["model_ids"] = service_.options().names;
      body["context_length"] = status.context;
      body["max_batch_size"] = status.lanes;
      body["requests_running"] = status.running;
      body["requests_waiting"] = status.waiting;
      body["connections"] = http_.connections();
      body["prompt_tokens_total"] = status.prompt_tokens;
      body["completion_tokens_total"] = service_.metrics().reply_tokens();
      body["cached_tokens_total"] = status.cached_tokens;
      body["rounds_total"] = status.rounds;
      body["drafted_total"] = status.drafted;
      body["accepted_total"] = status.accepted;
      body["drafts_off_reason"] = status.drafts_off_reason.empty() ? Json(nullptr) : Json(status.drafts_off_reason);
    }
    HttpReply reply;
    reply.status = stopping_ || stalled ? 503 : 200;
    reply.body = dump(body);
    exchange.reply(std::move(reply));
  }

  void route(const std::shared_ptr<Exchange>& exchange, const Client& client) {
    const HttpRequest& request = exchange->request();
    const Dialect dialect = dialect_of(request.path);
    try {
      if (stopping_) throw ApiError(503, "server_error", "the server is shutting down");
      dispatch(exchange, client);
    } catch (...) {
      const ApiError error = to_api_error(std::current_exception());
      const RequestOrigin origin{new_id("req_"), client.label, request.path};
      service_.log().refused(origin, error.status(), error.what());
      HttpReply refusal = error_reply(error, dialect);
      refusal.headers.emplace_back("X-Request-Id", origin.id);
      answer_failure(*exchange, std::move(refusal));
    }
  }

  /// A route that has answered already and then fails keeps its first answer.
  static void answer_failure(Exchange& exchange, HttpReply reply) {
    try {
      exchange.reply(std::move(reply));
    } catch (const Error&) {
      return;
    }
  }

  void dispatch(const std::shared_ptr<Exchange>& exchange, const Client& client) {
    const HttpRequest& request = exchange->request();
    const std::string path = plain_path(request.path);
    const bool get = request.method == "GET" || request.method == "HEAD";
    const bool post = request.method == "POST";
    if (get && path == "/models") return handle_models(service_, exchange);
    if (get && path == "/") return handle_page(*exchange);
    if (get && is_metrics(path)) return handle_metrics(*exchange);
    if (post && path == "/chat/completions") return handle_chat(service_, exchange, client);
    if (post && path == "/completions") return handle_completion(service_, exchange, client);
    if (post && path == "/responses") return handle_response(service_, responses_, exchange, client);
    if (get && path.rfind("/models/", 0) == 0) return handle_model(service_, exchange, path.substr(8));
    if (path.rfind("/responses/", 0) == 0) {
      const size_t end = path.find('/', 11);
      const std::string id = path.substr(11, end - 11);
      const bool whole = end == std::string::npos;
      if (whole && (get || request.method == "DELETE")) return handle_stored_response(responses_, exchange, id);
      if (!whole && get && path.substr(end) == "/input_items") return handle_input_items(responses_, exchange, id);
    }
    if (post && path == "/messages") return handle_messages(service_, exchange, client);
    if (post && path == "/messages/count_tokens") return handle_count_tokens(service_, exchange);
    if (post && path == "/tokenize") return handle_tokenize(service_, exchange);
    if (post && path == "/detokenize") return handle_detokenize(service_, exchange);
    if (post && path == "/decisions") return handle_decisions(service_, exchange, client);
    throw ApiError(404, "invalid_request_error",
                   fmt::format("there is no {} {} here", request.method, request.path.substr(0, 200)), "not_found");
  }

  static void handle_page(Exchange& exchange) {
    HttpReply reply;
    reply.content_type = "text/html; charset=utf-8";
    reply.headers = {{"Content-Security-Policy",
                      "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"},
                     {"X-Content-Type-Options", "nosniff"},
                     {"Referrer-Policy", "no-referrer"}};
    reply.body = std::string(chat_page());
    exchange.reply(std::move(reply));
  }

  void handle_metrics(Exchange& exchange) {
    HttpReply reply;
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = service_.metrics().text(service_.model().engine->status(), http_.connections());
    exchange.reply(std::move(reply));
  }

  ServerOptions options_;
  ApiKeys keys_;
  std::atomic<bool> stopping_{false};
  ProgressWatch progress_{options_.stall_patience};
  ResponseStore responses_;
  Service service_;
  HttpServer http_;
};

Server::Server(ServedModel model, ServerOptions options)
    : implementation_(std::make_unique<Implementation>(std::move(model), std::move(options))) {}
Server::~Server() = default;
uint16_t Server::port() const { return implementation_->port(); }
size_t Server::connections() const { return implementation_->connections(); }
void Server::reload_keys() { implementation_->reload_keys(); }
RequestLog& Server::log() { return implementation_->log(); }

}  // namespace tensorfold::server
