// POST /v1/decisions: questions about an input, answered by the shares that the model gives to the labels of the
// allowed answers at the answer's first token. Nothing is generated.
#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "server/api_error.h"
#include "server/routes.h"

namespace tensorfold::server {
namespace {

/// Names the wording of the prompts below; a change of it changes answers.
constexpr const char* prompt_format = "tensorfold-1";
constexpr size_t most_questions = 64;
constexpr size_t most_options = 26;
constexpr int32_t top_reported = 20;

struct Question {
  enum class Kind { choice, score, yes_no };
  std::string id;
  Kind kind = Kind::choice;
  std::vector<std::string> names;   ///< of the answers, as the reply spells them
  std::vector<std::string> labels;  ///< what the model answers with
  std::vector<int32_t> tokens;      ///< of the labels
  CheckedRequest request;
  std::map<int32_t, double> logprobs;  ///< of the tokens, as they come in
};

const std::string& text_field(const Json& object, const char* name, const std::string& where) {
  const Json* text = member(object, name);
  if (text == nullptr || !text->is_string() || text->get_ref<const std::string&>().empty()) {
    throw bad_request(fmt::format("{} needs a string '{}'", where, name), "questions");
  }
  return text->get_ref<const std::string&>();
}

/// Answers with what they mean: a list of names, or an object of names and descriptions (which may be null).
std::vector<std::pair<std::string, std::string>> described(const Json& list, const std::string& where) {
  std::vector<std::pair<std::string, std::string>> result;
  if (list.is_object()) {
    for (const auto& [name, meaning] : list.items()) {
      result.emplace_back(name, meaning.is_string() ? meaning.get<std::string>() : "");
    }
  } else if (list.is_array()) {
    for (const Json& one : list) {
      if (!one.is_string()) throw bad_request(where + " must hold strings", "questions");
      const auto& name = one.get_ref<const std::string&>();
      const bool twice =
          std::any_of(result.begin(), result.end(), [&](const auto& other) { return other.first == name; });
      if (twice) throw bad_request(fmt::format("{}: '{}' stands twice", where, name), "questions");
      result.emplace_back(name, "");
    }
  }
  if (result.size() < 2) throw bad_request(where + " must name at least two answers", "questions");
  return result;
}

/// The first words for yes and no that are one token each.
std::pair<std::string, std::string> yes_no_labels(const text::Tokenizer& tokenizer) {
  const std::vector<std::pair<std::string, std::string>> words = {{"yes", "no"}, {"Yes", "No"}, {"Y", "N"}};
  for (const auto& [yes, no] : words) {
    const bool single =
        tokenizer.encode(std::string_view(yes)).size() == 1 && tokenizer.encode(std::string_view(no)).size() == 1;
    if (single) return {yes, no};
  }
  return words.front();
}

/// Reads one question; the lines that list its answers go to `lines`.
Question read_question(const text::Tokenizer& tokenizer, const Json& body, const std::string& where,
                       std::string& lines) {
  Question question;
  const std::string& kind = text_field(body, "type", where);
  const auto add = [&](const std::string& name, const std::string& label, const std::string& meaning) {
    question.names.push_back(name);
    question.labels.push_back(label);
    if (!meaning.empty()) lines += fmt::format("{}: {}\n", label, meaning);
  };
  if (kind == "choice") {
    const Json* options = member(body, "options");
    const auto answers = described(options != nullptr ? *options : Json(), where + ".options");
    if (answers.size() > most_options) throw bad_request(where + ".options has more than 26 entries", "questions");
    for (size_t i = 0; i < answers.size(); ++i) {
      const auto& [name, meaning] = answers[i];
      add(name, std::string(1, static_cast<char>('A' + i)), meaning.empty() ? name : name + ": " + meaning);
    }
  } else if (kind == "score") {
    question.kind = Question::Kind::score;
    const Json* levels = member(body, "levels");
    const auto answers = described(levels != nullptr ? *levels : Json(), where + ".levels");
    if (answers.size() > 10) throw bad_request(where + ".levels has more than 10 entries", "questions");
    for (size_t i = 0; i < answers.size(); ++i) {
      const auto& [name, meaning] = answers[i];
      add(std::to_string(i), std::to_string(i), meaning.empty() ? name : name + ": " + meaning);
    }
  } else if (kind == "yes_no") {
    question.kind = Question::Kind::yes_no;
    const auto [yes, no] = yes_no_labels(tokenizer);
    add("yes", yes, string_field(body, "yes").value_or(""));
    add("no", no, string_field(body, "no").value_or(""));
  } else {
    throw bad_request(fmt::format("{}.type must be choice, score or yes_no, not '{}'", where, kind), "questions");
  }
  return question;
}

/// The labels' tokens; each must be one token, and no two the same.
std::vector<int32_t> label_tokens(const text::Tokenizer& tokenizer, const Question& question) {
  std::vector<int32_t> tokens;
  for (const std::string& label : question.labels) {
    const auto ids = tokenizer.encode(std::string_view(label));
    if (ids.size() != 1 || std::find(tokens.begin(), tokens.end(), ids.front()) != tokens.end()) {
      throw bad_request(fmt::format("the label '{}' is not one token of its own in this model's vocabulary", label),
                        "questions");
    }
    tokens.push_back(ids.front());
  }
  return tokens;
}

Question checked_question(Service& service, const Json& body, const Json& asked, const std::string& where) {
  if (!asked.is_object()) throw bad_request(where + " must be an object", "questions");
  std::string lines;
  Question question = read_question(*service.model().tokenizer, asked, where, lines);
  const Json* input = member(body, "input");
  if (input == nullptr || !input->is_string()) throw bad_request("input must be a string", "input");
  const std::string text = fmt::format("{}\n\n{}\n{}Answer with exactly one of these and nothing else: {}.",
                                       input->get_ref<const std::string&>(), text_field(asked, "question", where),
                                       lines, fmt::join(question.labels, ", "));
  Json chat = {{"messages", Json::array({{{"role", "user"}, {"content", text}}})},
               {"chat_template_kwargs", {{"enable_thinking", false}}},
               {"temperature", 0},
               {"max_tokens", 1},
               {"draft", false},
               {"logprobs", true},
               {"top_logprobs", top_reported},
               {"ignore_eos", true}};
  if (const Json* model = member(body, "model")) chat["model"] = *model;
  question.request = service.check_chat(chat);
  if (question.request.prompt.in_reasoning) {
    throw bad_request("this model's template opens a reasoning block, so there is no answer to score", "questions");
  }
  question.tokens = label_tokens(*service.model().tokenizer, question);
  return question;
}

/// The questions of one request under way. A first run of each prompt tells the likeliest tokens; labels that are not
/// among them are then each made the drawn token, whose share is reported too.
class Decisions : public std::enable_shared_from_this<Decisions> {
 public:
  Decisions(Service& service, std::shared_ptr<Exchange> exchange, std::vector<Question> questions, double temperature)
      : service_(service),
        exchange_(std::move(exchange)),
        questions_(std::move(questions)),
        temperature_(temperature),
        waiting_(questions_.size()) {}

  void start() {
    std::vector<CheckedRequest> first;
    first.reserve(questions_.size());
    for (const Question& question : questions_) first.push_back(question.request);
    for (size_t i = 0; i < first.size(); ++i) start_one(i, first[i]);
    exchange_->on_gone([self = weak_from_this()] {
      if (const auto decisions = self.lock()) decisions->client_left();
    });
  }

 private:
  void client_left() {
    std::vector<Service::Running> running;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_ == 0) return;
      summary_.left = true;
      running.swap(running_);
      report();
    }
    for (const Service::Running& one : running) one.cancel();
  }

  void start_one(size_t index, const CheckedRequest& request) {
    auto sink = std::make_shared<CollectedReply>(
        [self = shared_from_this(), index](const CollectedReply& reply) { self->arrived(index, reply); });
    try {
      Service::Running running = service_.start_unreported(request, {std::move(sink)});
      bool left = false;
      {
        const std::lock_guard lock(mutex_);
        left = summary_.left;
        if (!left) running_.push_back(running);
      }
      if (left) running.cancel();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = to_api_error(std::current_exception());
      one_less();
    }
  }

  void one_less() {
    if (--waiting_ == 0) answer();
  }

  void arrived(size_t index, const CollectedReply& reply) {
    std::vector<CheckedRequest> more;
    {
      const std::lock_guard lock(mutex_);
      note_counts(index, reply.summary);
      if (reply.failure && !failure_) failure_ = reply.failure;
      more = take(questions_[index], reply);
      waiting_ += more.size();
    }
    for (const CheckedRequest& request : more) start_one(index, request);
    const std::lock_guard lock(mutex_);
    one_less();
  }

  /// A question's prompt counts once, however many runs it takes.
  void note_counts(size_t index, const ReplySummary& run) {
    if (questions_[index].request.forced_token >= 0) return;
    summary_.statistics.prompt_tokens += run.statistics.prompt_tokens;
    summary_.statistics.cached_tokens += run.statistics.cached_tokens;
    if (summary_.first_token < 0.0) summary_.first_token = run.first_token;
  }

  /// One line for the whole request.
  void report() {
    const CheckedRequest& request = questions_.front().request;
    summary_.questions = questions_.size();
    summary_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - request.arrival).count();
    if (failure_) {
      service_.log().refused(request.origin, failure_->status(), failure_->what());
      return;
    }
    if (summary_.left) service_.metrics().disconnected();
    service_.metrics().scored(summary_.statistics, {summary_.seconds, summary_.first_token});
    service_.log().scored(request.origin, summary_);
  }

  /// Notes what a run has told; after the first one, the runs that are still needed.
  static std::vector<CheckedRequest> take(Question& question, const CollectedReply& reply) {
    const bool first = question.request.forced_token < 0;
    const auto note = [&](int32_t token, float logprob) {
      const auto& wanted = question.tokens;
      if (std::find(wanted.begin(), wanted.end(), token) != wanted.end()) question.logprobs[token] = logprob;
    };
    for (const engine::TokenLogprobs& drawn : reply.logprobs) {
      note(drawn.token, drawn.logprob);
      for (const auto& [token, logprob] : drawn.top) note(token, logprob);
    }
    std::vector<CheckedRequest> more;
    if (!first || reply.failure) return more;
    for (const int32_t token : question.tokens) {
      if (question.logprobs.contains(token)) continue;
      more.push_back(question.request);
      more.back().forced_token = token;
    }
    question.request.forced_token = 0;  // the first run is over
    return more;
  }

  [[nodiscard]] Json answer_of(const Question& question) const {
    std::vector<double> shares;
    double largest = -INFINITY;
    double mass = 0;
    for (const int32_t token : question.tokens) {
      const auto known = question.logprobs.find(token);
      shares.push_back(known != question.logprobs.end() ? known->second : -INFINITY);
      largest = std::max(largest, shares.back());
      mass += std::exp(shares.back());
    }
    double sum = 0;
    for (double& share : shares) sum += share = std::exp((share - largest) / temperature_);
    Json probabilities = Json::object();
    size_t best = 0;
    double expected = 0;
    for (size_t i = 0; i < shares.size(); ++i) {
      shares[i] /= sum;
      probabilities[question.names[i]] = shares[i];
      expected += shares[i] * static_cast<double>(i);
      if (shares[i] > shares[best]) best = i;
    }
    Json answer = Json::object();
    switch (question.kind) {
      case Question::Kind::choice:
        answer = {{"type", "choice"}, {"choice", question.names[best]}};
        break;
      case Question::Kind::score:
        answer = {{"type", "score"}, {"score", expected}};
        break;
      case Question::Kind::yes_no:
        answer = {{"type", "yes_no"}, {"answer", question.names[best]}};
        break;
    }
    answer["probabilities"] = std::move(probabilities);
    answer["label_mass"] = std::min(mass, 1.0);
    return answer;
  }

  void answer() {
    running_.clear();
    if (summary_.left) return;
    report();
    if (failure_) {
      HttpReply refusal;
      refusal.status = failure_->status();
      refusal.body = error_body(*failure_, Dialect::openai);
      exchange_->reply(std::move(refusal));
      return;
    }
    Json answers = Json::object();
    size_t prompt_tokens = 0;
    for (const Question& question : questions_) {
      answers[question.id] = answer_of(question);
      prompt_tokens += question.request.prompt.ids.size();
    }
    const Json body = {
        {"id", questions_.front().request.origin.id},
        {"object", "decisions"},
        {"model", questions_.front().request.model},
        {"prompt_format_version", prompt_format},
        {"answers", std::move(answers)},
        {"usage", {{"prompt_tokens", prompt_tokens}, {"completion_tokens", 0}, {"total_tokens", prompt_tokens}}}};
    HttpReply reply;
    reply.body = dump(body);
    exchange_->reply(std::move(reply));
  }

  Service& service_;
  std::shared_ptr<Exchange> exchange_;
  std::mutex mutex_;
  std::vector<Question> questions_;
  double temperature_;
  size_t waiting_;
  std::optional<ApiError> failure_;
  DecisionsSummary summary_;
  std::vector<Service::Running> running_;
};

void check_template_arguments(const Json& body) {
  const Json* arguments = member(body, "chat_template_kwargs");
  if (arguments == nullptr) return;
  if (*arguments != Json{{"enable_thinking", false}}) {
    throw bad_request("chat_template_kwargs may only be {\"enable_thinking\": false}: decisions do not think",
                      "chat_template_kwargs");
  }
}

}  // namespace

void handle_decisions(Service& service, const std::shared_ptr<Exchange>& exchange, const Client& client) {
  const Json body = parse_body(exchange->request().body);
  check_template_arguments(body);
  const double temperature = number_field(body, "temperature", 1e-3, 1e3).value_or(1.0);
  const Json* asked = member(body, "questions");
  if (asked == nullptr || !(asked->is_array() || asked->is_object()) || asked->empty() ||
      asked->size() > most_questions) {
    throw bad_request(
        fmt::format("questions must be a list of 1 to {} questions, or an object of them by id", most_questions),
        "questions");
  }
  service.admit();
  std::vector<Question> questions;
  const std::string id = new_id("dec_");
  for (const auto& [key, one] : asked->items()) {
    const std::string where = asked->is_array() ? fmt::format("questions[{}]", key) : "questions." + key;
    Question question = checked_question(service, body, one, where);
    question.id = asked->is_array() ? string_field(one, "id").value_or(key) : key;
    question.request.origin = {id, client.label, exchange->request().path};
    const bool twice =
        std::any_of(questions.begin(), questions.end(), [&](const Question& other) { return other.id == question.id; });
    if (twice) throw bad_request(fmt::format("the id '{}' stands twice", question.id), "questions");
    questions.push_back(std::move(question));
  }
  std::make_shared<Decisions>(service, exchange, std::move(questions), temperature)->start();
}

}  // namespace tensorfold::server
