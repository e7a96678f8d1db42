#include "hub/http.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <string_view>

#include <curl/curl.h>
#include <fmt/format.h>

#include "base/error.h"

namespace tensorfold::hub {
namespace {

void initialise_curl_once() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  check(code == CURLE_OK, "libcurl initialises");
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

struct FreeUrl {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using Url = std::unique_ptr<CURLU, FreeUrl>;

std::string url_part(const Url& url, CURLUPart part, unsigned int flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url.get(), part, &text, flags) != CURLUE_OK) return "";
  std::string copy = text;
  curl_free(text);
  return copy;
}

bool is_web(const Url& url) {
  const std::string scheme = url_part(url, CURLUPART_SCHEME);
  return scheme == "http" || scheme == "https";
}

bool may_retry(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_OUT_OF_MEMORY:
    case CURLE_BAD_FUNCTION_ARGUMENT:
      return false;
    default:
      return true;
  }
}

}  // namespace

struct HttpSession::State {
  HttpOptions options;
  CURL* curl = nullptr;

  // The exchange in progress.
  HttpHead head;
  const OnHead* on_head = nullptr;
  const OnBody* on_body = nullptr;
  bool stopped = false;
  std::exception_ptr thrown;

  /// Runs a callback; an exception must not cross libcurl's C frames, so it is kept and thrown after them.
  template <typename Callback>
  bool guarded(Callback callback) {
    try {
      if (callback()) return true;
    } catch (...) {
      thrown = std::current_exception();
    }
    stopped = true;
    return false;
  }

  bool take_header_line(std::string_view line) {
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) {
      head = HttpHead{};
      const size_t blank = line.find(' ');
      if (blank != std::string_view::npos) head.status = std::atoi(std::string(line.substr(blank + 1, 3)).c_str());
      return true;
    }
    if (line.empty()) return head.status < 200 || guarded([&] { return (*on_head)(head); });
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return true;
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
    head.headers[lower(std::string(line.substr(0, colon)))] = value;
    return true;
  }

  static size_t header_callback(char* data, size_t size, size_t count, void* self) {
    return static_cast<State*>(self)->take_header_line({data, size * count}) ? size * count : 0;
  }

  static size_t body_callback(char* data, size_t size, size_t count, void* self) {
    auto* state = static_cast<State*>(self);
    const std::span bytes(reinterpret_cast<const std::byte*>(data), size * count);
    return state->guarded([&] { return (*state->on_body)(bytes); }) ? size * count : 0;
  }

  static int progress_callback(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto* state = static_cast<State*>(self);
    if (state->options.cancel == nullptr || !state->options.cancel->load()) return 0;
    state->stopped = true;
    return 1;
  }

  template <typename Value>
  void set(CURLoption option, Value value) {
    check(curl_easy_setopt(curl, option, value) == CURLE_OK, "libcurl takes an option");
  }

  void prepare(const HttpRequest& request, curl_slist* headers) {
    curl_easy_reset(curl);  // keeps the connections
    set(CURLOPT_URL, request.url.c_str());
    set(CURLOPT_HTTPHEADER, headers);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_FOLLOWLOCATION, 0L);
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));  // one connection a session
    set(CURLOPT_NOBODY, request.head ? 1L : 0L);
    set(CURLOPT_USERAGENT, options.user_agent.c_str());
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_timeout.count()));
    set(CURLOPT_LOW_SPEED_LIMIT, options.stall_bytes);
    set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options.stall_timeout.count()));
    // A wish: libcurl 7.88 refuses it on a handle whose last transfer failed before it began.
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L * 1024);
    set(CURLOPT_TCP_KEEPALIVE, 1L);
    set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    set(CURLOPT_HEADERFUNCTION, &State::header_callback);
    set(CURLOPT_HEADERDATA, this);
    set(CURLOPT_WRITEFUNCTION, &State::body_callback);
    set(CURLOPT_WRITEDATA, this);
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, &State::progress_callback);
    set(CURLOPT_XFERINFODATA, this);
    if (options.certificates) set(CURLOPT_CAINFO, options.certificates->c_str());
    if (request.range_begin) {
      const std::string range = request.range_end ? fmt::format("{}-{}", *request.range_begin, *request.range_end - 1)
                                                  : fmt::format("{}-", *request.range_begin);
      set(CURLOPT_RANGE, range.c_str());
    }
  }
};

std::optional<std::string> HttpHead::header(const std::string& name) const {
  const auto found = headers.find(name);
  if (found == headers.end()) return std::nullopt;
  return found->second;
}

HttpSession::HttpSession(HttpOptions options) : state_(std::make_unique<State>()) {
  initialise_curl_once();
  state_->options = std::move(options);
  state_->curl = curl_easy_init();
  check(state_->curl != nullptr, "libcurl gives a handle");
}

HttpSession::~HttpSession() { curl_easy_cleanup(state_->curl); }

HttpResult HttpSession::send(const HttpRequest& request, const OnHead& on_head, const OnBody& on_body) {
  State& state = *state_;
  state.head = HttpHead{};
  state.on_head = &on_head;
  state.on_body = &on_body;
  state.stopped = false;
  state.thrown = nullptr;

  curl_slist* headers = curl_slist_append(nullptr, "Accept-Encoding: identity");
  for (const std::string& header : request.headers) headers = curl_slist_append(headers, header.c_str());
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> owner(headers, &curl_slist_free_all);
  char detail[CURL_ERROR_SIZE] = "";
  state.prepare(request, headers);
  state.set(CURLOPT_ERRORBUFFER, detail);
  const CURLcode code = curl_easy_perform(state.curl);
  if (state.thrown != nullptr) std::rethrow_exception(state.thrown);

  HttpResult result;
  result.head = std::move(state.head);
  if (state.stopped) {
    result.end = HttpResult::End::stopped;
  } else if (code == CURLE_OK) {
    result.end = HttpResult::End::complete;
  } else {
    result.failure = *detail != '\0' ? detail : curl_easy_strerror(code);
    result.may_retry = may_retry(code);
  }
  return result;
}

std::string origin_of(const std::string& url) {
  const Url parsed(curl_url());
  if (curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK || !is_web(parsed)) return "";
  return lower(url_part(parsed, CURLUPART_SCHEME) + "://" + url_part(parsed, CURLUPART_HOST) + ":" +
               url_part(parsed, CURLUPART_PORT, CURLU_DEFAULT_PORT));
}

std::optional<std::string> resolved_url(const std::string& base, const std::string& reference) {
  const Url parsed(curl_url());
  if (curl_url_set(parsed.get(), CURLUPART_URL, base.c_str(), 0) != CURLUE_OK) return std::nullopt;
  if (curl_url_set(parsed.get(), CURLUPART_URL, reference.c_str(), CURLU_URLENCODE) != CURLUE_OK) return std::nullopt;
  if (!is_web(parsed)) return std::nullopt;
  return url_part(parsed, CURLUPART_URL);
}

}  // namespace tensorfold::hub
