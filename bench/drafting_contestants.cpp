#include "drafting_contestants.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <sched.h>

#include "backend/keyed_sampling.h"

namespace tensorfold {
namespace {

using Clock = std::chrono::steady_clock;

/// Threads that are made from now on run on the cores from `first` to before `last`. Where the system places the
/// engines' threads and the backend's must not differ between contestants.
void make_threads_on(int first, int last) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int core = first; core < last; ++core) CPU_SET(static_cast<size_t>(core), &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

std::unique_ptr<backend::Backend> make_backend(int threads) {
  if (threads > 1) make_threads_on(1, threads);
  auto made = backend::make_cpu_backend(threads);
  make_threads_on(0, 1);
  return made;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Started start(Subject& subject, Drafters made, int32_t depth, int32_t parallel) {
  engine::EngineOptions options;
  options.context = 2048;
  options.parallel = parallel;
  options.keep_prefixes = false;
  options.kept_states = 1;
  options.memory_budget = uint64_t{512} << 20;
  options.prefill_rows = 256;
  options.drafts = !made.empty();
  options.fixed_drafts = depth;
  Started started;
  options.log = [calibrated = started.calibrated](const std::string& line) {
    fmt::print("  ({})\n", line);
    *calibrated = true;
  };
  started.engine = engine::start_engine(*subject.backend, *subject.model, options, std::move(made));
  return started;
}

Run play(engine::Engine& engine, const Workload& workload, const std::vector<int32_t>& end_tokens) {
  Run run;
  run.replies.resize(workload.asks.size());
  std::mutex mutex;
  std::condition_variable done;
  size_t left = workload.asks.size();
  const auto submit = [&](size_t i) {
    const Ask& ask = workload.asks[i];
    engine::Request request;
    request.prompt = ask.prompt;
    request.max_tokens = ask.tokens;
    if (ask.end) request.end_tokens = end_tokens;
    request.sampling = {.temperature = ask.temperature,
                        .top_k = 0,
                        .top_p = 0.95,
                        .min_p = 0.0,
                        .seed = backend::default_seed(ask.prompt)};
    request.on_tokens = [&run, i](std::span<const int32_t> tokens, std::span<const engine::TokenLogprobs>) {
      run.replies[i].insert(run.replies[i].end(), tokens.begin(), tokens.end());
      return true;
    };
    request.on_finish = [&](const engine::ReplyResult& result) {
      const std::lock_guard lock(mutex);
      run.decode += result.statistics.decode_seconds;
      run.tokens += result.statistics.reply_tokens - 1;
      run.rounds += result.statistics.rounds - 1;
      run.drafted += result.statistics.drafted;
      run.accepted += result.statistics.accepted;
      --left;
      done.notify_all();
    };
    engine.submit(std::move(request));
  };
  const auto wait_until = [&](size_t count) {
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return left <= count; });
  };
  const auto begin = Clock::now();
  const double cpu = processor_seconds();
  for (size_t i = 0; i < workload.asks.size(); ++i) {
    submit(i);
    if (!workload.together) wait_until(workload.asks.size() - i - 1);
  }
  wait_until(0);
  run.whole = std::chrono::duration<double>(Clock::now() - begin).count();
  run.cpu = processor_seconds() - cpu;
  return run;
}

void let_calibrate(const Started& started) {
  for (int tries = 0; tries < 2000 && !*started.calibrated; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::vector<Figures> measure(std::vector<Contestant>& contestants, const Workload& workload, int repeats,
                             const std::vector<int32_t>& end_tokens) {
  std::vector<std::vector<double>> ratios(contestants.size());
  std::vector<std::vector<double>> costs(contestants.size());
  std::vector<std::vector<double>> expected(contestants.size());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    double serial_rate = 1.0;
    double serial_round = 1.0;
    for (size_t turn = 0; turn < contestants.size(); ++turn) {
      const size_t others = contestants.size() - 1;
      // Nobody always follows the same one, or is always far from the serial run.
      const size_t i = turn == 0 ? 0 : 1 + (turn - 1 + static_cast<size_t>(repeat) * others / 3) % others;
      const Run run = play(*contestants[i].started.engine, workload, end_tokens);
      const double round = run.decode / static_cast<double>(std::max<int64_t>(run.rounds, 1));
      if (i == 0) {
        serial_rate = run.rate();
        serial_round = round;
      }
      ratios[i].push_back(run.rate() / serial_rate);
      costs[i].push_back(round / serial_round);
      expected[i].push_back(run.expected());
    }
  }
  std::vector<Figures> figures;
  for (size_t i = 0; i < contestants.size(); ++i) {
    figures.push_back({median(expected[i]), median(costs[i]), median(ratios[i])});
  }
  return figures;
}

}  // namespace tensorfold
