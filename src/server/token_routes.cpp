// Tokenize and detokenize.
#include <fmt/format.h>

#include "server/api_error.h"
#include "server/routes.h"

namespace tensorfold::server {
namespace {

std::vector<int32_t> encoded(const text::Tokenizer& tokenizer, const std::string& text, bool add_special_tokens) {
  text::EncodeOptions options;
  options.add_special_tokens = add_special_tokens;
  return tokenizer.encode(std::string_view(text), options);
}

}  // namespace

void handle_tokenize(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const Json body = parse_body(exchange->request().body);
  const text::Tokenizer& tokenizer = *service.model().tokenizer;
  std::vector<int32_t> ids;
  if (member(body, "messages") != nullptr) {
    ids = service.render(body).ids;
  } else if (const auto prompt = string_field(body, "prompt")) {
    ids = encoded(tokenizer, *prompt, boolean_field(body, "add_special_tokens").value_or(true));
  } else if (const auto content = string_field(body, "content")) {  // llama.cpp's spelling
    ids = encoded(tokenizer, *content, boolean_field(body, "add_special").value_or(false));
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
    if (!id.is_number_integer()) throw bad_request("tokens must be a list of token ids", "tokens");
    const int64_t last = service.model().vocabulary - 1;
    if (id < 0 || id > last) {
      throw bad_request(fmt::format("tokens: {} is out of range; this model's token ids are 0 to {}", dump(id), last),
                        "tokens");
    }
    ids.push_back(id.get<int32_t>());
  }
  HttpReply reply;
  const std::string text = service.model().tokenizer->decode(ids);
  reply.body = dump({{"prompt", text}, {"content", text}});
  exchange->reply(std::move(reply));
}

}  // namespace tensorfold::server
