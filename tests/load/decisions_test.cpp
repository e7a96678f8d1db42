// Decisions by the demonstration model: shares that add up, the same every time, and for labels beyond the reported
// best ones too.
#include <cmath>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "cli/loaded_model.h"
#include "cli/model_options.h"
#include "server/raw_client.h"
#include "server/server.h"
#include "shared_data.h"

namespace tensorfold::server {
namespace {

TEST(Decisions, SharesAddUpAndRepeat) {
  const auto loaded = cli::load_model(testing::project_path("models/demo").string(), cli::RunOptions{});
  ServerOptions options;
  options.http.port = 0;
  options.service.names = {"demo"};
  options.service.log_format = RequestLogFormat::off;
  Server server(loaded->served(), options);
  Json letters = Json::array();
  for (char letter = 'a'; letter <= 'z'; ++letter) letters.push_back(std::string("option ") + letter);
  Json body = {{"input", "The parcel arrived broken."},
               {"questions",
                {{"many", {{"type", "choice"}, {"question", "Which one?"}, {"options", letters}}},
                 {"level", {{"type", "score"}, {"question", "How bad?"}, {"levels", {"fine", "bad", "worse"}}}},
                 {"true", {{"type", "yes_no"}, {"question", "Is it broken?"}, {"yes", "it is"}}}}}};
  const auto ask = [&] {
    RawClient client(server.port());
    client.send(post("/v1/decisions", dump(body)));
    return Json::parse(client.read_reply().body);
  };
  const Json first = ask();
  ASSERT_TRUE(first.contains("answers")) << dump(first);
  EXPECT_EQ(first["usage"]["completion_tokens"], 0);
  for (const char* question : {"many", "level", "true"}) {
    const Json& answer = first["answers"][question];
    double sum = 0;
    for (const auto& [name, share] : answer["probabilities"].items()) {
      EXPECT_GT(share.get<double>(), 0.0) << name;
      sum += share.get<double>();
    }
    EXPECT_NEAR(sum, 1.0, 1e-9);
    EXPECT_GT(answer["label_mass"].get<double>(), 0.0);
    EXPECT_LE(answer["label_mass"].get<double>(), 1.0);
  }
  EXPECT_EQ(first["answers"]["many"]["probabilities"].size(), 26U);
  EXPECT_EQ(ask()["answers"], first["answers"]);
  body["temperature"] = 1000;
  const Json flat = ask();
  for (const auto& [name, share] : flat["answers"]["many"]["probabilities"].items()) {
    EXPECT_NEAR(share.get<double>(), 1.0 / 26, 0.01) << name;
  }
  EXPECT_EQ(flat["answers"]["many"]["label_mass"], first["answers"]["many"]["label_mass"]);
}

}  // namespace
}  // namespace tensorfold::server
