// Anthropic's request bodies in terms of a chat completion.
#pragma once

#include "server/json_body.h"

namespace tensorfold::server {

/// The chat body that asks for the same reply. `counting`: max_tokens need not be there. Throws ApiError (400) for what
/// cannot be expressed: documents, images, server-side tools.
Json chat_from_messages(const Json& body, bool counting);

}  // namespace tensorfold::server
