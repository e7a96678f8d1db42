#include "server/http_server.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/raw_client.h"

namespace tensorfold::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

/// "/echo" repeats the body; "/hold" keeps the exchange for the test; "/drop" forgets it.
class Echo {
 public:
  explicit Echo(HttpServerOptions options = {}) {
    options.port = 0;
    server_ = std::make_unique<HttpServer>(options, [this](std::shared_ptr<Exchange> exchange) { handle(exchange); });
    server_->start();
  }
  ~Echo() {
    const std::lock_guard lock(mutex_);
    held_.clear();
  }
  uint16_t port() const { return server_->port(); }
  HttpServer& server() { return *server_; }
  std::shared_ptr<Exchange> held(size_t index = 0) {
    for (int tries = 0; tries < 2000; ++tries) {
      {
        const std::lock_guard lock(mutex_);
        if (held_.size() > index) return held_[index];
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
    return nullptr;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    held_.clear();
  }

 private:
  void handle(const std::shared_ptr<Exchange>& exchange) {
    const HttpRequest& request = exchange->request();
    if (request.path == "/hold") {
      const std::lock_guard lock(mutex_);
      held_.push_back(exchange);
    } else if (request.path != "/drop") {
      HttpReply reply;
      reply.content_type = "text/plain";
      reply.body = request.method + " " + request.path + "?" + request.query + " " + request.body;
      exchange->reply(reply);
    }
  }
  std::mutex mutex_;
  std::vector<std::shared_ptr<Exchange>> held_;
  std::unique_ptr<HttpServer> server_;
};

template <typename Condition>
bool eventually(Condition condition, milliseconds patience = seconds(5)) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return condition();
}

TEST(HttpServer, AnswersRequestAfterRequestOnOneConnection) {
  Echo echo;
  RawClient client(echo.port());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(client.send(post("/echo?a=b", "hello " + std::to_string(i))));
    EXPECT_EQ(client.read_reply().body, "POST /echo?a=b hello " + std::to_string(i));
  }
}

TEST(HttpServer, ReadsBytesOneAtATime) {
  Echo echo;
  RawClient client(echo.port());
  for (const char c : post("/echo", "slow") + get("/next")) ASSERT_TRUE(client.send({&c, 1}));
  EXPECT_EQ(client.read_reply().body, "POST /echo? slow");
  EXPECT_EQ(client.read_reply().body, "GET /next? ");
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  Echo echo;
  RawClient client(echo.port());
  std::string all;
  for (int i = 0; i < 50; ++i) all += post("/echo", std::to_string(i));
  ASSERT_TRUE(client.send(all));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.read_reply().body, "POST /echo? " + std::to_string(i));
}

TEST(HttpServer, DecodesChunkedBodies) {
  Echo echo;
  RawClient client(echo.port());
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "3\r\nabc\r\n4;note=1\r\ndefg\r\n1\r\nh\r\n0\r\n\r\n" +
                  get("/after")));
  EXPECT_EQ(client.read_reply().body, "POST /echo? abcdefgh");
  EXPECT_EQ(client.read_reply().body, "GET /after? ");
}

TEST(HttpServer, InvitesABodyThatWaitsForIt) {
  Echo echo;
  RawClient client(echo.port());
  const std::string body(2048, 'x');
  ASSERT_TRUE(client.send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2048\r\n\r\n"));
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(client.send(body));
  EXPECT_EQ(client.read_reply().body, "POST /echo? " + body);
}

TEST(HttpServer, RefusesAmbiguousAndBrokenFraming) {
  Echo echo;
  for (const char* wrong :
       {"POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        "POST /echo HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nabc\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        "POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "POST /echo HTTP/1.1\r\nContent-Length: 3, 4\r\n\r\nabcd",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "nonsense\r\n\r\n", "GET /echo HTTP/3.7\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}) {
    RawClient client(echo.port());
    ASSERT_TRUE(client.send(wrong));
    const RawReply reply = client.read_reply();
    EXPECT_EQ(reply.status, 400) << wrong;
    EXPECT_THAT(reply.head, HasSubstr("Connection: close"));
    EXPECT_EQ(client.read_all(), "") << "nothing may follow a refusal";
  }
}

TEST(HttpServer, HoldsNoEndlessChunkExtensionsOrTrailers) {
  Echo echo;
  const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string piece(4096, 'a');
  for (const std::string& start : {head + "f;", head + "3\r\nabc\r\n0;", head + "3\r\nabc\r\n0\r\nX-A: "}) {
    RawClient client(echo.port());
    ASSERT_TRUE(client.send(start));
    int sent = 0;
    while (sent < 100 && client.send(piece)) {
      ++sent;
      if (sent == 8) std::this_thread::sleep_for(milliseconds(200));  // it has had time to answer
    }
    EXPECT_EQ(client.read_reply().status, 431) << start.substr(head.size());
  }
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "1;name=value\r\na\r\n";
  RawClient client(echo.port());
  ASSERT_TRUE(client.send(head + many + "0;last\r\nX-Trailer: 1\r\n\r\n"));
  EXPECT_EQ(client.read_reply().body, "POST /echo? " + std::string(5000, 'a')) << "many short ones are ordinary";
}

TEST(HttpServer, ReadsTheAbsoluteFormOfATarget) {
  Echo echo;
  RawClient client(echo.port());
  for (const auto& [target, path] : std::vector<std::pair<std::string, std::string>>{
           {"http://x/echo?a=b", "/echo?a=b"}, {"http://x:80", "/?"}, {"http://x?q=1", "/?q=1"}}) {
    ASSERT_TRUE(client.send(get(target)));
    EXPECT_EQ(client.read_reply().body, "GET " + path + " ") << target;
  }
}

TEST(HttpServer, RefusesWhatIsTooLargeWithoutReadingIt) {
  HttpServerOptions options;
  options.body_limit = 1 << 20;
  Echo echo(options);
  RawClient announced(echo.port());
  ASSERT_TRUE(announced.send("POST /echo HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"));
  EXPECT_EQ(announced.read_reply().status, 413);

  RawClient chunked(echo.port());
  ASSERT_TRUE(chunked.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"));
  const std::string piece = "10000\r\n" + std::string(0x10000, 'x') + "\r\n";
  for (int i = 0; i < 40 && chunked.send(piece); ++i) {
  }
  EXPECT_EQ(chunked.read_reply().status, 413);

  RawClient header(echo.port());
  header.send("GET / HTTP/1.1\r\nX: " + std::string(200000, 'y'));
  EXPECT_EQ(header.read_reply().status, 431);
}

TEST(HttpServer, ClosesSilentAndSlowClients) {
  HttpServerOptions options;
  options.idle_timeout = seconds(1);
  options.header_timeout = seconds(1);
  options.body_timeout = seconds(1);
  Echo echo(options);
  RawClient silent(echo.port());
  EXPECT_EQ(silent.read_all(), "");
  RawClient half_header(echo.port());
  half_header.send("POST /echo HT");
  EXPECT_EQ(half_header.read_reply().status, 408);
  RawClient half_body(echo.port());
  half_body.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(half_body.read_reply().status, 408);
}

TEST(HttpServer, StreamsPiecesAndKeepsTheConnection) {
  Echo echo;
  RawClient client(echo.port());
  client.send(get("/hold"));
  const auto exchange = echo.held();
  ASSERT_TRUE(exchange);
  HttpReply head;
  head.content_type = "text/event-stream";
  exchange->begin_stream(head, "", seconds(0));
  for (int i = 0; i < 3; ++i) exchange->write("data: " + std::to_string(i) + "\n\n");
  exchange->end_stream();
  const RawReply reply = client.read_reply();
  EXPECT_EQ(reply.body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
  client.send(get("/again"));
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(HttpServer, OldClientsGetAPlainStreamThatEndsWithTheConnection) {
  Echo echo;
  RawClient client(echo.port());
  client.send("GET /hold HTTP/1.0\r\n\r\n");
  const auto exchange = echo.held();
  ASSERT_TRUE(exchange);
  exchange->begin_stream({}, "", seconds(0));
  exchange->write("one");
  exchange->end_stream();
  const RawReply reply = client.read_reply();
  EXPECT_THAT(reply.head, Not(HasSubstr("chunked")));
  EXPECT_EQ(reply.body, "one");
}

TEST(HttpServer, PingsASilentStreamByTheClock) {
  Echo echo;
  RawClient client(echo.port());
  client.send(get("/hold"));
  const auto exchange = echo.held();
  ASSERT_TRUE(exchange);
  exchange->begin_stream({}, ":\n\n", seconds(1));
  client.read_until("\r\n\r\n");
  EXPECT_EQ(client.read_until(":\n\n\r\n"), "3\r\n:\n\n\r\n");
  exchange->end_stream();
}

TEST(HttpServer, NoticesAClientThatLeavesWithoutWritingToIt) {
  Echo echo;
  auto client = std::make_unique<RawClient>(echo.port());
  client->send(get("/hold"));
  const auto exchange = echo.held();
  ASSERT_TRUE(exchange);
  std::atomic<bool> left{false};
  exchange->on_gone([&] { left = true; });
  EXPECT_FALSE(exchange->gone());
  client->close();
  EXPECT_TRUE(eventually([&] { return left.load(); }));
  EXPECT_TRUE(exchange->gone());
  std::atomic<bool> at_once{false};
  exchange->on_gone([&] { at_once = true; });
  EXPECT_TRUE(at_once);
  exchange->reply({});  // must not hurt
}

TEST(HttpServer, AStalledReaderKeepsWhatWasWrittenAndIsCutOff) {
  HttpServerOptions options;
  options.write_timeout = seconds(1);
  Echo echo(options);
  RawClient client(echo.port(), 4096);
  client.send(get("/hold"));
  const auto exchange = echo.held();
  ASSERT_TRUE(exchange);
  exchange->begin_stream({}, "", seconds(0));
  std::atomic<bool> left{false};
  exchange->on_gone([&] { left = true; });
  exchange->write(std::string(16 << 20, 'z'));
  EXPECT_TRUE(eventually([&] { return exchange->unsent() > (1 << 20) || left; }));
  RawClient other(echo.port());
  other.send(get("/echo"));
  EXPECT_EQ(other.read_reply().status, 200) << "others are served meanwhile";
  EXPECT_TRUE(eventually([&] { return left.load(); }));
  EXPECT_EQ(exchange->unsent(), 0U);
}

TEST(HttpServer, TellsWhenEverythingWasTaken) {
  Echo echo;
  RawClient client(echo.port());
  client.send(get("/hold"));
  const auto exchange = echo.held();
  ASSERT_TRUE(exchange);
  std::atomic<int> drains{0};
  exchange->on_drained([&] { ++drains; });
  exchange->begin_stream({}, "", seconds(0));
  exchange->write("x");
  EXPECT_TRUE(eventually([&] { return drains > 0 && exchange->unsent() == 0; }));
  exchange->end_stream();
}

TEST(HttpServer, ADroppedExchangeIsA500AndADroppedStreamIsVisiblyBroken) {
  Echo echo;
  RawClient client(echo.port());
  client.send(get("/drop"));
  EXPECT_EQ(client.read_reply().status, 500);
  client.send(get("/hold"));
  echo.held()->begin_stream({}, "", seconds(0));
  echo.held()->write("part");
  echo.release();
  const std::string bytes = client.read_all();
  EXPECT_THAT(bytes, HasSubstr("part"));
  EXPECT_THAT(bytes, Not(::testing::EndsWith("0\r\n\r\n")));
}

TEST(HttpServer, HoldsMoreThanAThousandConnections) {
  Echo echo;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 1100; ++i) {
    clients.push_back(std::make_unique<RawClient>(echo.port()));
    clients.back()->send(get("/" + std::to_string(i)));
  }
  for (int i = 0; i < 1100; ++i) {
    EXPECT_EQ(clients[static_cast<size_t>(i)]->read_reply().body, "GET /" + std::to_string(i) + "? ");
  }
  EXPECT_TRUE(eventually([&] { return echo.server().connections() == 1100; }));
  clients.clear();
  EXPECT_TRUE(eventually([&] { return echo.server().connections() == 0; }));
}

TEST(HttpServer, StopsEvenWhenClientsHang) {
  auto echo = std::make_unique<Echo>();
  RawClient idle(echo->port());
  RawClient waiting(echo->port());
  waiting.send(get("/hold"));
  ASSERT_TRUE(echo->held());
  const auto start = std::chrono::steady_clock::now();
  echo->server().stop(milliseconds(200));
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(3));
}

TEST(HttpServer, AnEmptyAddressIsNotEveryInterface) {
  HttpServerOptions options;
  options.host = "";
  options.port = 0;
  EXPECT_THROW(HttpServer(options, [](const std::shared_ptr<Exchange>&) {}), Error);
}

TEST(HttpServer, SaysWhyItCannotListen) {
  HttpServerOptions options;
  options.host = "no such host.invalid";
  try {
    const HttpServer server(options, [](const std::shared_ptr<Exchange>&) {});
    FAIL() << "must throw";
  } catch (const Error& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("no such host.invalid:8080"));
  }
}

}  // namespace
}  // namespace tensorfold::server
