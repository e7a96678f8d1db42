// Bodies of the Responses API in terms of a chat completion.
#pragma once

#include "server/json_body.h"

namespace tensorfold::server {

/// The input of a request as a list of items; a string becomes one user message. Throws ApiError (400).
Json input_items(const Json& body);

/// The chat body that asks for the same reply. `items`: the whole conversation, earlier responses' items first. Throws
/// ApiError (400) for what this server does not do: built-in tools, background runs, conversations, files.
Json chat_from_responses(const Json& body, const Json& items);

}  // namespace tensorfold::server
