// GET /v1/models and /v1/models/{id}, in a form that both OpenAI's and Anthropic's clients read.
#include <algorithm>
#include <charconv>
#include <ctime>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "server/api_error.h"
#include "server/routes.h"

namespace tensorfold::server {
namespace {

/// "%2F" and the like as the bytes they stand for; what is no escape stays.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      decoded += static_cast<char>(byte);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

Json model_object(const Service& service, const std::string& name) {
  static const std::time_t started = std::time(nullptr);
  return {{"id", name},
          {"object", "model"},
          {"created", started},
          {"owned_by", "tensorfold"},
          {"max_model_len", service.context()},
          {"context_length", service.context()},
          {"type", "model"},
          {"display_name", name},
          {"created_at", fmt::format("{:%FT%TZ}", fmt::gmtime(started))}};
}

}  // namespace

void handle_models(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const std::vector<std::string>& names = service.options().names;
  Json body = {{"object", "list"},
               {"data", Json::array()},
               {"first_id", names.front()},
               {"last_id", names.back()},
               {"has_more", false}};
  for (const std::string& name : names) body["data"].push_back(model_object(service, name));
  HttpReply reply;
  reply.body = dump(body);
  exchange->reply(std::move(reply));
}

void handle_model(Service& service, const std::shared_ptr<Exchange>& exchange, const std::string& name) {
  const std::vector<std::string>& names = service.options().names;
  const std::string asked = percent_decoded(name);
  if (std::find(names.begin(), names.end(), asked) == names.end()) {
    throw ApiError(404, "invalid_request_error", fmt::format("there is no model '{}' here", asked.substr(0, 200)),
                   "model_not_found", "model");
  }
  HttpReply reply;
  reply.body = dump(model_object(service, asked));
  exchange->reply(std::move(reply));
}

}  // namespace tensorfold::server
