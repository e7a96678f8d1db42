#include "server/service.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "backend/keyed_sampling.h"
#include "server/api_error.h"
#include "server/grammar_constraint.h"
#include "text/call_reader.h"
#include "text/jinja/json_value.h"

namespace tensorfold::server {
namespace {

constexpr const char* think_close = "</think>";

ApiError context_error(const std::string& message, const std::string& param) {
  return {400, "invalid_request_error", message, "context_length_exceeded", param};
}

/// The markers around reasoning that a reply to this model's template has; empty: none.
std::pair<std::string_view, std::string_view> reasoning_markers(const text::ReplyFormat& format) {
  switch (format.reasoning) {
    case text::ReasoningMarkers::think:
      return {"<think>", think_close};
    case text::ReasoningMarkers::channel:
      return {"<|channel>", "<channel|>"};
    case text::ReasoningMarkers::none:
      break;
  }
  return {};
}

std::vector<int32_t> read_token_ids(const Json& list, int64_t vocabulary) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocabulary) {
      throw bad_request(fmt::format("prompt: token ids must be integers from 0 to {}", vocabulary - 1), "prompt");
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

Service::Service(ServedModel model, ServiceOptions options)
    : model_(std::move(model)),
      options_(std::move(options)),
      log_(options_.log_format),
      pool_(std::max<size_t>(options_.threads, 2)) {}

Service::~Service() { pool_.stop(); }

std::string Service::answering_name(const Json& body) const {
  const Json* asked = member(body, "model");
  if (asked != nullptr) {
    if (!asked->is_string()) throw bad_request("model must be a string", "model");
    const auto& name = asked->get_ref<const std::string&>();
    if (std::find(options_.names.begin(), options_.names.end(), name) != options_.names.end()) return name;
  }
  return options_.names.front();
}

RenderSettings Service::render_settings(const Json& body) const {
  RenderSettings settings;
  settings.thinking = options_.defaults.thinking;
  settings.effort = options_.defaults.reasoning_effort;
  const Json* kwargs = member(body, "chat_template_kwargs");
  if (kwargs != nullptr && !kwargs->is_object()) {
    throw bad_request("chat_template_kwargs must be an object", "chat_template_kwargs");
  }
  bool explicit_switch = false;
  if (kwargs != nullptr) {
    settings.arguments = *kwargs;
    for (const char* name : {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token",
                             "pad_token", "unk_token"}) {
      if (!kwargs->contains(name)) continue;
      throw bad_request(fmt::format("chat_template_kwargs.{} is the server's to set", name), "chat_template_kwargs");
    }
    if (const Json* thinking = member(*kwargs, "thinking")) {
      const Json* type = member(*thinking, "type");
      if (thinking->is_boolean()) {
        settings.thinking = thinking->get<bool>();
      } else if (type != nullptr && (*type == "enabled" || *type == "disabled")) {
        settings.thinking = *type == "enabled";
      } else {
        throw bad_request("chat_template_kwargs.thinking must be a boolean or {\"type\": \"enabled\"|\"disabled\"}",
                          "chat_template_kwargs");
      }
      explicit_switch = true;
    }
    if (const auto enable = boolean_field(*kwargs, "enable_thinking")) {
      settings.thinking = *enable;
      explicit_switch = true;
    }
  }
  auto effort = string_field(body, "reasoning_effort");
  if (!effort && kwargs != nullptr) effort = string_field(*kwargs, "reasoning_effort");
  if (effort) {
    settings.effort = *effort;
    if (!explicit_switch) settings.thinking = *effort != "none";
  }
  if (!settings.effort.empty()) settings.effort = model_.renderer->effort_for_template(settings.effort);
  for (const char* ours : {"thinking", "enable_thinking", "reasoning_effort"}) settings.arguments.erase(ours);
  return settings;
}

Prompt Service::render(const Json& body) const {
  RenderSettings settings = render_settings(body);
  settings.generation_prompt = boolean_field(body, "add_generation_prompt").value_or(true);
  const ToolSettings tools = read_tools(body);
  return model_.renderer->render(checked_messages(body), tools.offered, settings);
}

CheckedRequest Service::check_chat(const Json& body, const FieldNames& names) const {
  if (!body.is_object()) throw bad_request("the body must be a JSON object");
  CheckedRequest checked;
  checked.arrival = std::chrono::steady_clock::now();
  checked.fields = read_generation_fields(body, options_.defaults, model_.vocabulary, true);
  refuse_media(body);
  refuse_unsupported_fields(body);
  if (!boolean_field(body, "add_generation_prompt").value_or(true)) {
    throw bad_request("add_generation_prompt: false is for /tokenize only", "add_generation_prompt");
  }
  const Json messages = checked_messages(body);
  checked.tools = read_tools(body);
  checked.grammar = grammar_for(body);
  if (checked.grammar && checked.tools.forced()) {
    throw bad_request("a call that must be made cannot be combined with structured output", "tool_choice");
  }
  const RenderSettings settings = render_settings(body);
  checked.thinking = settings.thinking;
  checked.effort = settings.effort;
  checked.prompt = model_.renderer->render(messages, checked.tools.offered, settings);
  checked.model = answering_name(body);
  checked.text.stops = checked.fields.stop;
  checked.text.format = model_.renderer->reply_format();
  checked.text.tools = text::OfferedTools(text::jinja::from_json(checked.tools.offered));
  checked.text.starts_in_reasoning = checked.prompt.in_reasoning;
  checked.text.parallel_calls = checked.tools.parallel;
  checked.text.stream_arguments = checked.fields.stream;
  const auto budget = integer_field(body, "thinking_budget", 0, INT32_MAX).value_or(0);
  checked.thinking_budget = budget > 0 ? static_cast<int32_t>(budget) : options_.defaults.thinking_budget;
  checked.text.call_is_forced = checked.tools.forced();
  if (checked.tools.forced()) checked.gate = gate_for(checked);
  check_room(checked, names);
  return checked;
}

CheckedRequest Service::check_completion(const Json& body) const {
  if (!body.is_object()) throw bad_request("the body must be a JSON object");
  CheckedRequest checked;
  checked.arrival = std::chrono::steady_clock::now();
  checked.fields = read_generation_fields(body, options_.defaults, model_.vocabulary, false);
  refuse_media(body);
  refuse_unsupported_fields(body);
  const Json* prompt = member(body, "prompt");
  if (prompt == nullptr) throw bad_request("prompt must be a string or a list of token ids", "prompt");
  const Json* text = prompt;
  if (prompt->is_array() && prompt->size() == 1 && !(*prompt)[0].is_number()) text = &(*prompt)[0];
  if (text->is_string()) {
    text::EncodeOptions options;
    options.add_special_tokens = boolean_field(body, "add_special_tokens").value_or(false);
    checked.prompt.ids = model_.tokenizer->encode(std::string_view(text->get_ref<const std::string&>()), options);
  } else if (text->is_array() && !text->empty() && (*text)[0].is_number()) {
    checked.prompt.ids = read_token_ids(*text, model_.vocabulary);
  } else {
    throw bad_request("prompt must be one string or one list of token ids", "prompt");
  }
  if (checked.prompt.ids.empty()) throw bad_request("prompt must not be empty", "prompt");
  checked.model = answering_name(body);
  checked.text.stops = checked.fields.stop;
  checked.text.plain = true;
  checked.grammar = grammar_for(body);
  check_room(checked, {"prompt", {}});
  return checked;
}

CallGate Service::gate_for(const CheckedRequest& checked) const {
  const text::CallFormat* format = model_.renderer->call_format();
  if (format == nullptr) {
    throw bad_request("this model's template has no opener for tool calls, so none can be forced; use tool_choice auto",
                      "tool_choice");
  }
  const text::Tokenizer& tokenizer = *model_.tokenizer;
  CallGate gate;
  gate.opening = tokenizer.encode(std::string_view(format->opener + format->lead));
  for (const Json& tool : checked.tools.offered) gate.names.push_back(tool_name(tool) + format->tail);
  if (checked.prompt.in_reasoning) {
    gate.think_end = tokenizer.id_of(think_close).value_or(-1);
    gate.after_thinking = tokenizer.encode(std::string_view("\n\n"));
  }
  gate.closer = text::call_closer(format->opener);
  gate.closer_token = tokenizer.id_of(gate.closer).value_or(-1);
  if (!checked.fields.ignore_eos) gate.end_tokens = model_.end_tokens;
  return gate;
}

std::shared_ptr<text::grammar::Matcher> Service::grammar_for(const Json& body) const {
  const auto format = read_output_format(body);
  if (!format) return nullptr;
  std::call_once(vocabulary_made_, [this] {
    using text::grammar::Vocabulary;
    vocabulary_ = std::make_shared<const Vocabulary>(Vocabulary::ordinary_tokens(*model_.tokenizer));
  });
  return grammars_.get(*format, vocabulary_);
}

const TokensByBytes& Service::tokens_by_bytes() const {
  std::call_once(tokens_made_, [this] { tokens_ = TokensByBytes(*model_.tokenizer); });
  return tokens_;
}

GrammarPlacement Service::place_grammar(const CheckedRequest& checked) const {
  const text::Tokenizer& tokenizer = *model_.tokenizer;
  GrammarPlacement placement;
  if (!checked.fields.ignore_eos) placement.end_tokens = model_.end_tokens;
  if (!checked.text.plain) {
    const auto [opener, closer] = reasoning_markers(checked.text.format);
    placement.think_end = closer.empty() ? -1 : tokenizer.id_of(closer).value_or(-1);
    if (placement.think_end >= 0) {
      placement.starts_in_reasoning = checked.prompt.in_reasoning;
      if (checked.thinking && !checked.prompt.in_reasoning) placement.think_open = tokenizer.id_of(opener).value_or(-1);
      const auto blank_line = tokenizer.encode(std::string_view("\n\n"));
      if (blank_line.size() == 1) placement.blank_line = blank_line.front();
    }
    const text::CallFormat* calls = model_.renderer->call_format();
    if (calls != nullptr && !checked.tools.offered.empty()) {
      // The gate behind the opener: what the reply calls is offered.
      CallGate gate = gate_for(checked);
      const int32_t call_opener = tokenizer.id_of(calls->opener).value_or(-1);
      if (!gate.opening.empty() && gate.opening.front() == call_opener) {
        gate.opening.erase(gate.opening.begin());
        gate.think_end = -1;
        placement.call_opener = call_opener;
        placement.call = std::make_shared<const CallGate>(std::move(gate));
        placement.tokens = &tokens_by_bytes();
      }
    }
  }
  return placement;
}

std::shared_ptr<engine::Constraint> Service::make_constraint(const CheckedRequest& checked,
                                                             const std::optional<GrammarPlacement>& placement) {
  std::vector<std::unique_ptr<engine::Constraint>> parts;
  const text::Tokenizer& tokenizer = *model_.tokenizer;
  const auto think_end = tokenizer.id_of(think_close);
  if (checked.thinking_budget > 0 && checked.prompt.in_reasoning && think_end) {
    // Under a gate the blank line after the block is the gate's; a grammar begins right behind the block.
    const std::string close = std::string("\n") + think_close + (checked.gate || checked.grammar ? "" : "\n\n");
    parts.push_back(thinking_budget(checked.thinking_budget, tokenizer.encode(std::string_view(close)), *think_end));
  }
  if (checked.gate) {
    parts.push_back(call_gate(*checked.gate, tokens_by_bytes()));
  }
  if (placement) parts.push_back(grammar_constraint(checked.grammar, *placement));
  if (checked.forced_token >= 0) parts.push_back(thinking_budget(1, {checked.forced_token}, -1));
  return all_of(std::move(parts));
}

void Service::check_room(CheckedRequest& checked, const FieldNames& names) const {
  const int64_t window = context();
  const auto prompt = static_cast<int64_t>(checked.prompt.ids.size());
  const int64_t room = window - prompt;
  const std::string& param = names.prompt;
  const std::string& limit = names.limit.empty() ? checked.fields.limit_field : names.limit;
  const char* verb = param == "messages" ? "have" : "has";
  if (room < 1) {
    throw context_error(fmt::format("This server's maximum context length is {} tokens. However, your {} {} {} tokens, "
                                    "which leaves no room for a reply. Please reduce the length of the {} to at most "
                                    "{} tokens, or start the server with a larger --context if memory allows.",
                                    window, param, verb, prompt, param, window - 1),
                        param);
  }
  if (checked.fields.max_tokens && *checked.fields.max_tokens > room) {
    const int64_t asked = *checked.fields.max_tokens;
    const std::string shorter =
        asked < window ? fmt::format("the length of the {} to at most {} tokens or ", param, window - asked) : "";
    throw context_error(fmt::format("This server's maximum context length is {} tokens. However, you requested {} "
                                    "tokens ({} in the {}, {} in the completion). Please reduce {}{} to at most {}.",
                                    window, prompt + asked, prompt, param, asked, shorter, limit, room),
                        param);
  }
  if (!checked.fields.max_tokens) {
    checked.fields.max_tokens = static_cast<int32_t>(std::min<int64_t>(options_.defaults.max_tokens, room));
  }
}

void Service::Running::cancel() const {
  for (const auto& choice : choices) choice->cancel();
}

void Service::Running::resume() const {
  for (const auto& choice : choices) choice->resume();
}

void Service::admit() const {
  // Counted here, not asked of the engine: what it was just given still waits there although its lanes are idle.
  const int64_t lanes = model_.engine->status().lanes;
  if (places_->load() < lanes + options_.queue_limit) return;
  throw ApiError(429, "rate_limit_error",
                 fmt::format("{} replies are being made and {} requests are waiting; try again later", lanes,
                             options_.queue_limit),
                 "queue_full");
}

Service::Running Service::start(const CheckedRequest& checked, const Sinks& sinks) {
  const std::lock_guard lock(admission_);
  admit();
  Accounting accounting;
  accounting.counted = [this](size_t tokens) { metrics_.drawn(tokens); };
  accounting.ended = [this, origin = checked.origin, several = sinks.size() > 1](
                         size_t choice, const ReplySummary& summary, bool cancelled) {
    metrics_.finished(summary.statistics, {summary.seconds, summary.first_token});
    if (cancelled) metrics_.disconnected();
    log_.finished(origin, summary, cancelled, several ? std::optional(choice) : std::nullopt);
  };
  accounting.withdrawn = [this](size_t tokens) { metrics_.withdrawn(tokens); };
  return launch(checked, sinks, accounting);
}

Service::Running Service::start_unreported(const CheckedRequest& checked, const Sinks& sinks) {
  return launch(checked, sinks, {});
}

Service::Running Service::launch(const CheckedRequest& checked, const Sinks& sinks, const Accounting& accounting) {
  const uint64_t seed = checked.fields.seed.value_or(backend::default_seed(checked.prompt.ids, options_.seed_salt));
  const auto placement = checked.grammar ? std::optional(place_grammar(checked)) : std::nullopt;
  Running running;
  try {
    for (size_t choice = 0; choice < sinks.size(); ++choice) {
      ReplyPlan plan;
      engine::Request& request = plan.request;
      request.prompt = checked.prompt.ids;
      request.snapshot_hints = checked.prompt.snapshot_hints;
      request.system_tokens = checked.prompt.system_tokens;
      request.sampling = checked.fields.sampling;
      request.sampling.seed = backend::keyed::choice_seed(seed, choice);
      request.repetition_penalty = checked.fields.repetition_penalty;
      request.frequency_penalty = checked.fields.frequency_penalty;
      request.presence_penalty = checked.fields.presence_penalty;
      request.logit_bias = checked.fields.logit_bias;
      request.max_tokens = checked.fields.max_tokens.value_or(1);
      request.end_tokens = checked.fields.stop_tokens;
      if (!checked.fields.ignore_eos) {
        request.end_tokens.insert(request.end_tokens.end(), model_.end_tokens.begin(), model_.end_tokens.end());
      }
      request.draft = checked.fields.draft;
      request.priority = checked.fields.priority;
      request.top_logprobs = checked.fields.top_logprobs;
      request.constraint = make_constraint(checked, placement);
      plan.text = checked.text;
      if (!checked.text.plain) plan.text.grammar = placement;
      plan.end_tokens = request.end_tokens;
      plan.arrival = checked.arrival;
      plan.counted = accounting.counted;
      ++*places_;
      plan.place = std::shared_ptr<const void>(nullptr, [places = places_](const void*) { --*places; });
      auto generation = std::make_shared<Generation>(pool_, *model_.tokenizer, std::move(plan), sinks[choice]);
      generation->start(*model_.engine);
      running.choices.push_back(std::move(generation));
    }
  } catch (...) {
    running.cancel();
    for (const auto& choice : running.choices) {
      choice->open([withdrawn = accounting.withdrawn](const ReplySummary& summary, bool) {
        if (withdrawn) withdrawn(summary.tokens.size());
      });
    }
    throw;
  }
  for (size_t choice = 0; choice < running.choices.size(); ++choice) {
    running.choices[choice]->open([ended = accounting.ended, choice](const ReplySummary& summary, bool cancelled) {
      if (ended) ended(choice, summary, cancelled);
    });
  }
  return running;
}

}  // namespace tensorfold::server
