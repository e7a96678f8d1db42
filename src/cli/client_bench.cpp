// tensorfold client-bench --url URL: how fast a server answers, from outside; any OpenAI-compatible server.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/http_client.h"
#include "server/json_body.h"

namespace tensorfold::cli {
namespace {

using server::Json;
using Clock = std::chrono::steady_clock;

struct BenchState {
  std::string url = "http://127.0.0.1:8080";
  std::string model;
  std::string key;
  int32_t tokens = 64;
  int32_t repetitions = 5;
  int32_t streams = 4;
  int32_t turns = 12;
  int32_t timeout = 600;
  bool json = false;
};

/// The two prompts that the reference's tables are made with.
constexpr const char* code_prompt =
    "Write a short Python function that computes the Fibonacci sequence and explain it.";
constexpr const char* chat_prompt =
    "Explain how matrix multiplication uses a GPU in plain English, then give a small numerical example.";
constexpr uint64_t first_seed = 1234;

struct Timing {
  double first_token = 0.0;        ///< seconds from the request to the first text
  double tokens_per_second = 0.0;  ///< (tokens - 1) / (last - first)
  double seconds = 0.0;
  int64_t tokens = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  std::string text;
};

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
}

class Bench {
 public:
  explicit Bench(const BenchState& state) : state_(state), url_(ServerUrl::parse(state.url)) {
    if (state.tokens < 2 || state.repetitions < 1) {
      fail(ErrorKind::invalid_request, "--tokens must be at least 2 and --reps at least 1");
    }
    model_ = state.model.empty() ? first_model() : state.model;
  }

  [[nodiscard]] Json cell(bool chat, double temperature) const {
    (void)stream(chat, request(chat, temperature, first_seed));  // warm-up
    std::vector<double> rates;
    std::vector<double> first_tokens;
    for (int32_t i = 0; i < state_.repetitions; ++i) {
      const Timing timing = stream(chat, request(chat, temperature, first_seed + static_cast<uint64_t>(i)));
      rates.push_back(timing.tokens_per_second);
      first_tokens.push_back(timing.first_token);
    }
    return {{"prompt", chat ? "gpu-chat-no-think" : "fibonacci-raw"},
            {"temperature", temperature},
            {"decode_tps_median", median(rates)},
            {"decode_tps_all", rates},
            {"ttft_s_median", median(first_tokens)}};
  }

  /// All streams at once, each with its own seed.
  [[nodiscard]] Json together() const {
    std::vector<Timing> timings(static_cast<size_t>(state_.streams));
    std::vector<std::thread> threads;
    const auto start = Clock::now();
    for (size_t i = 0; i < timings.size(); ++i) {
      threads.emplace_back([this, i, &timings] {
        try {
          timings[i] = stream(true, request(true, 1.0, first_seed + i));
        } catch (const Error&) {
          timings[i].tokens = 0;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const double seconds = since(start);
    int64_t tokens = 0;
    std::vector<double> first_tokens;
    for (const Timing& timing : timings) {
      tokens += timing.tokens;
      first_tokens.push_back(timing.first_token);
    }
    return {{"streams", state_.streams},
            {"tokens", tokens},
            {"tps_total", static_cast<double>(tokens) / seconds},
            {"ttft_s_median", median(first_tokens)},
            {"ttft_s_worst", *std::max_element(first_tokens.begin(), first_tokens.end())}};
  }

  /// One conversation that grows: what a kept prefix saves shows in the later turns' first tokens.
  [[nodiscard]] Json conversation() const {
    Json messages = Json::array();
    Json turns = Json::array();
    for (int32_t turn = 0; turn < state_.turns; ++turn) {
      messages.push_back({{"role", "user"}, {"content", fmt::format("Turn {}. {}", turn + 1, chat_prompt)}});
      Json body = request(true, 0.0, first_seed);
      body["messages"] = messages;
      const Timing timing = stream(true, body);
      turns.push_back({{"prompt_tokens", timing.prompt_tokens},
                       {"cached_tokens", timing.cached_tokens},
                       {"ttft_s", timing.first_token},
                       {"seconds", timing.seconds}});
      messages.push_back({{"role", "assistant"}, {"content", timing.text}});
    }
    return turns;
  }

 private:
  std::string first_model() const {
    const HttpAnswer answer = exchange(url_, "/v1/models", state_.key, "", state_.timeout);
    const Json list = Json::parse(answer.body, nullptr, false);
    if (answer.status != 200 || !list.is_object() || list.value("data", Json::array()).empty()) {
      fail(ErrorKind::network, "{} lists no models (status {})", state_.url, answer.status);
    }
    return list["data"][0].value("id", "");
  }

  [[nodiscard]] Json request(bool chat, double temperature, uint64_t seed) const {
    Json body = {{"model", model_},
                 {"max_tokens", state_.tokens},
                 {"temperature", temperature},
                 {"stream", true},
                 {"ignore_eos", true},
                 {"seed", seed},
                 {"stream_options", {{"include_usage", true}}}};
    if (temperature > 0.0) {
      body["top_k"] = 20;
      body["top_p"] = 0.95;
    }
    if (chat) {
      body["messages"] = Json::array({{{"role", "user"}, {"content", chat_prompt}}});
      body["chat_template_kwargs"] = {{"enable_thinking", false}};
    } else {
      body["prompt"] = code_prompt;
    }
    return body;
  }

  [[nodiscard]] Timing stream(bool chat, const Json& body) const {
    Timing timing;
    const auto start = Clock::now();
    double last = 0.0;
    const auto on_event = [&](std::string_view data) {
      if (data == "[DONE]") return;
      const Json chunk = Json::parse(data, nullptr, false);
      if (!chunk.is_object()) return;
      if (chunk.contains("error")) fail(ErrorKind::network, "the server failed: {}", server::dump(chunk["error"]));
      read_usage(chunk, timing);
      std::string text;
      for (const Json& choice : chunk.value("choices", Json::array())) {
        const Json delta = chat ? choice.value("delta", Json::object()) : choice;
        for (const char* key : {"reasoning_content", "content", "text"}) {
          if (const Json* piece = server::member(delta, key); piece != nullptr && piece->is_string()) {
            text += piece->get<std::string>();
          }
        }
      }
      if (text.empty()) return;
      timing.text += text;
      last = since(start);
      if (timing.first_token == 0.0) timing.first_token = last;
    };
    const HttpAnswer answer = exchange(url_, chat ? "/v1/chat/completions" : "/v1/completions", state_.key,
                                       server::dump(body), state_.timeout, on_event);
    if (answer.status != 200) fail(ErrorKind::network, "status {}: {}", answer.status, answer.body.substr(0, 300));
    timing.seconds = since(start);
    if (last > timing.first_token) {
      timing.tokens_per_second = static_cast<double>(timing.tokens - 1) / (last - timing.first_token);
    }
    return timing;
  }

  static void read_usage(const Json& chunk, Timing& timing) {
    const Json* usage = server::member(chunk, "usage");
    if (usage == nullptr) return;
    timing.tokens = usage->value("completion_tokens", int64_t{0});
    timing.prompt_tokens = usage->value("prompt_tokens", int64_t{0});
    if (const Json* details = server::member(*usage, "prompt_tokens_details")) {
      timing.cached_tokens = details->value("cached_tokens", int64_t{0});
    }
  }

  const BenchState& state_;
  ServerUrl url_;
  std::string model_;
};

int run(const BenchState& state) {
  const Bench bench(state);
  Json report = {{"url", state.url}, {"tokens", state.tokens}, {"cells", Json::array()}};
  if (!state.json) fmt::print("{:<20}{:>12}{:>16}{:>16}\n", "prompt", "temperature", "decode tok/s", "first token s");
  for (const double temperature : {1.0, 0.0}) {
    for (const bool chat : {false, true}) {
      const Json cell = bench.cell(chat, temperature);
      if (!state.json) {
        fmt::print("{:<20}{:>12}{:>16.2f}{:>16.4f}\n", cell["prompt"].get<std::string>(), temperature,
                   cell["decode_tps_median"].get<double>(), cell["ttft_s_median"].get<double>());
        std::fflush(stdout);
      }
      report["cells"].push_back(cell);
    }
  }
  if (state.streams > 0) {
    report["together"] = bench.together();
    if (!state.json) {
      fmt::print("{} streams together: {:.2f} tokens a second, first token {:.4f} s (median), {:.4f} s (worst)\n",
                 state.streams, report["together"]["tps_total"].get<double>(),
                 report["together"]["ttft_s_median"].get<double>(), report["together"]["ttft_s_worst"].get<double>());
    }
  }
  if (state.turns > 0) {
    report["conversation"] = bench.conversation();
    if (!state.json) {
      fmt::print("{:<6}{:>10}{:>10}{:>16}\n", "turn", "prompt", "cached", "first token s");
      int number = 0;
      for (const Json& turn : report["conversation"]) {
        fmt::print("{:<6}{:>10}{:>10}{:>16.4f}\n", ++number, turn["prompt_tokens"].get<int64_t>(),
                   turn["cached_tokens"].get<int64_t>(), turn["ttft_s"].get<double>());
      }
    }
  }
  if (state.json) fmt::print("{}\n", server::dump(report));
  return 0;
}

}  // namespace

Command client_bench_command() {
  const auto state = std::make_shared<BenchState>();
  Command command;
  command.name = "client-bench";
  command.summary = "Measure a running server from outside";
  command.description =
      "Two prompts at temperature 1 and 0 (median over seeds 1234 and on, end tokens ignored), then streams together, "
      "then one growing conversation. Works with any OpenAI-compatible server.";
  command.options = {
      {"--url", "URL", "of the server", "", &state->url, {}},
      {"--model", "ID", "default: the first the server lists", "", &state->model, {}},
      {"--api-key", "KEY", "sent as a bearer token", "", &state->key, {}},
      {"--tokens", "N", "of each reply", "", &state->tokens, {}},
      {"--reps", "N", "seeds of each cell", "", &state->repetitions, {}},
      {"--streams", "N", "replies at the same time; 0 leaves this out", "", &state->streams, {}},
      {"--turns", "N", "of the conversation; 0 leaves it out", "", &state->turns, {}},
      {"--timeout", "SECONDS", "without a byte", "", &state->timeout, {}},
      {"--json", "", "print one JSON object", "", &state->json, {}},
  };
  command.run = [state] { return run(*state); };
  return command;
}

}  // namespace tensorfold::cli
