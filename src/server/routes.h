// One function a route. They run on the server's threads and throw ApiError for what they refuse.
#pragma once

#include <memory>
#include <string>

#include "server/http_server.h"
#include "server/response_store.h"
#include "server/service.h"

namespace tensorfold::server {

/// Who asks.
struct Client {
  std::string label;  ///< of the key; empty without keys
};

void handle_chat(Service& service, const std::shared_ptr<Exchange>& exchange, const Client& client);
void handle_completion(Service& service, const std::shared_ptr<Exchange>& exchange, const Client& client);
void handle_messages(Service& service, const std::shared_ptr<Exchange>& exchange, const Client& client);
void handle_count_tokens(Service& service, const std::shared_ptr<Exchange>& exchange);
void handle_response(Service& service, ResponseStore& store, const std::shared_ptr<Exchange>& exchange,
                     const Client& client);
/// GET and DELETE of one stored response.
void handle_stored_response(ResponseStore& store, const std::shared_ptr<Exchange>& exchange, const std::string& id);
/// GET of the items that a stored response was made from.
void handle_input_items(ResponseStore& store, const std::shared_ptr<Exchange>& exchange, const std::string& id);
void handle_models(Service& service, const std::shared_ptr<Exchange>& exchange);
/// One model; `name` as it stands in the path.
void handle_model(Service& service, const std::shared_ptr<Exchange>& exchange, const std::string& name);
void handle_tokenize(Service& service, const std::shared_ptr<Exchange>& exchange);
void handle_detokenize(Service& service, const std::shared_ptr<Exchange>& exchange);
/// Scores labels at the answer's position; nothing is generated.
void handle_decisions(Service& service, const std::shared_ptr<Exchange>& exchange, const Client& client);

/// Sends the head of an event stream; `ping` keeps a silent one alive.
void begin_events(Exchange& exchange, const std::string& ping = ":\n\n");

/// Starts the replies and ties them to the client: they end when it leaves and wait when it does not read.
void run_for(Service& service, const std::shared_ptr<Exchange>& exchange, const CheckedRequest& checked,
             const Service::Sinks& sinks);

}  // namespace tensorfold::server
