// The messages of a request as a chat template wants them.
#pragma once

#include "text/jinja/value.h"
#include "text/template_traits.h"

namespace tensorfold::text {

/// Checked and normalised copies of the messages:
///   * content: null or absent becomes empty text; text parts are joined; other kinds of parts keep the list as it is;
///   * leading system and developer messages become one system message, a blank line between their texts; later ones
///   keep
///     their place as system messages where the template renders them, else as user messages;
///   * tool-call arguments: JSON text of an object becomes a mapping (or stays text where the template needs it), other
///     text becomes {"_invalid_arguments": text}, so that no template stumbles over a malformed history.
/// Role names are the template's own words, so they count as trusted.
/// Throws Error(invalid_request) for anything that is not a list of messages with known roles.
jinja::Value normalise_messages(const jinja::Value& messages, const TemplateTraits& traits);

}  // namespace tensorfold::text
