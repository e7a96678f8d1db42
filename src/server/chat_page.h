#pragma once

#include <string_view>

namespace tensorfold::server {

/// The chat page at "/": one HTML document without any external resource (chat_page.html, put in by the build).
std::string_view chat_page();

}  // namespace tensorfold::server
