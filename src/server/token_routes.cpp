// Models, tokenize, detokenize.
#include <ctime>

#include "server/api_error.h"
#include "server/routes.h"

namespace tensorfold::server {

void handle_models(Service& service, const std::shared_ptr<Exchange>& exchange) {
  static const int64_t started = std::time(nullptr);
  Json body = {{"object", "list"}, {"data", Json::array()}};
  for (const std::string& name : service.options().names) {
    body["data"].push_back({{"id", name},
                            {"object", "model"},
                            {"created", started},
                            {"owned_by", "tensorfold"},
                            {"max_model_len", service.context()},
                            {"context_length", service.context()}});
  }
  HttpReply reply;
  reply.body = dump(body);
  exchange->reply(std::move(reply));
}

void handle_tokenize(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const Json body = parse_body(exchange->request().body);
  const text::Tokenizer& tokenizer = *service.model().tokenizer;
  std::vector<int32_t> ids;
  if (member(body, "messages") != nullptr) {
    ids = service.render(body).ids;
  } else if (const Json* prompt = member(body, "prompt")) {
    if (!prompt->is_string()) throw bad_request("prompt must be a string", "prompt");
    text::EncodeOptions options;
    options.add_special_tokens = boolean_field(body, "add_special_tokens").value_or(true);
    ids = tokenizer.encode(std::string_view(prompt->get_ref<const std::string&>()), options);
  } else {
    throw bad_request("either prompt or messages is needed", "prompt");
  }
  Json answer = {{"count", ids.size()}, {"max_model_len", service.context()}, {"tokens", ids}};
  if (boolean_field(body, "return_token_strs").value_or(false)) {
    Json strings = Json::array();
    for (const int32_t id : ids) strings.push_back(std::string(tokenizer.token(id).value_or("")));
    answer["token_strs"] = std::move(strings);
  }
  HttpReply reply;
  reply.body = dump(answer);
  exchange->reply(std::move(reply));
}

void handle_detokenize(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const Json body = parse_body(exchange->request().body);
  const Json* tokens = member(body, "tokens");
  if (tokens == nullptr || !tokens->is_array()) throw bad_request("tokens must be a list of token ids", "tokens");
  std::vector<int32_t> ids;
  ids.reserve(tokens->size());
  for (const Json& id : *tokens) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= service.model().vocabulary) {
      throw bad_request("tokens must be a list of token ids", "tokens");
    }
    ids.push_back(id.get<int32_t>());
  }
  HttpReply reply;
  reply.body = dump({{"prompt", service.model().tokenizer->decode(ids)}});
  exchange->reply(std::move(reply));
}

}  // namespace tensorfold::server
