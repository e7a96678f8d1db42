// GET and DELETE /v1/responses/{id}, GET /v1/responses/{id}/input_items.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/api_error.h"
#include "server/response_store.h"
#include "server/routes.h"

namespace tensorfold::server {
namespace {

constexpr int64_t most_listed = 100;
constexpr int64_t usually_listed = 20;

ApiError unknown_response() {
  return {404, "invalid_request_error", "there is no stored response of this id", "not_found"};
}

/// The value of a query's parameter, as it stands there; empty when it is absent.
std::string_view query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const size_t end = query.find('&');
    const std::string_view pair = query.substr(0, end);
    if (pair.size() > name.size() && pair[name.size()] == '=' && pair.substr(0, name.size()) == name) {
      return pair.substr(name.size() + 1);
    }
    query.remove_prefix(end == std::string_view::npos ? query.size() : end + 1);
  }
  return {};
}

/// The item as the API lists it: with an id and a type, a message's text in parts.
Json listed(Json item, size_t index) {
  if (member(item, "type") == nullptr) item["type"] = "message";
  if (member(item, "id") == nullptr) item["id"] = fmt::format("item_{}", index);
  if (const Json* content = member(item, "content"); content != nullptr && content->is_string()) {
    const Json* role = member(item, "role");
    const char* kind = role != nullptr && *role == "assistant" ? "output_text" : "input_text";
    item["content"] = Json::array({{{"type", kind}, {"text", *content}}});
  }
  return item;
}

}  // namespace

void handle_stored_response(ResponseStore& store, const std::shared_ptr<Exchange>& exchange, const std::string& id) {
  HttpReply reply;
  if (exchange->request().method == "DELETE") {
    if (!store.erase(id)) throw unknown_response();
    reply.body = dump({{"id", id}, {"object", "response"}, {"deleted", true}});
  } else {
    const auto stored = store.find(id);
    if (!stored) throw unknown_response();
    reply.body = dump(stored->response);
  }
  exchange->reply(std::move(reply));
}

void handle_input_items(ResponseStore& store, const std::shared_ptr<Exchange>& exchange, const std::string& id) {
  const auto stored = store.find(id);
  if (!stored) throw unknown_response();
  const std::string_view query = exchange->request().query;
  const std::string_view order = query_value(query, "order");
  if (!order.empty() && order != "asc" && order != "desc") throw bad_request("order must be asc or desc", "order");
  const std::string_view limit_text = query_value(query, "limit");
  const Json asked = limit_text.empty() ? Json::object() : Json{{"limit", std::string(limit_text)}};
  const auto limit = static_cast<size_t>(integer_field(asked, "limit", 1, most_listed).value_or(usually_listed));
  std::vector<Json> items;
  for (size_t i = 0; i < stored->inputs; ++i) items.push_back(listed(stored->items[i], i));
  if (order != "asc") std::reverse(items.begin(), items.end());
  if (const std::string_view after = query_value(query, "after"); !after.empty()) {
    const auto last = std::find_if(items.begin(), items.end(), [&](const Json& item) { return item["id"] == after; });
    if (last == items.end()) throw bad_request("after names no item of this response", "after");
    items.erase(items.begin(), last + 1);
  }
  const bool more = items.size() > limit;
  if (more) items.resize(limit);
  HttpReply reply;
  reply.body = dump({{"object", "list"},
                     {"data", items},
                     {"first_id", items.empty() ? Json(nullptr) : items.front()["id"]},
                     {"last_id", items.empty() ? Json(nullptr) : items.back()["id"]},
                     {"has_more", more}});
  exchange->reply(std::move(reply));
}

}  // namespace tensorfold::server
