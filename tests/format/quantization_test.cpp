#include "format/quantization.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "format/synthetic_store.h"

namespace tensorfold::format {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

Quantization parse(const char* block) { return Quantization::parse(json{{"quantization", json::parse(block)}}); }

std::string message_of(const std::function<void()>& action, ErrorKind* kind = nullptr) {
  try {
    action();
  } catch (const Error& error) {
    if (kind != nullptr) *kind = error.kind();
    return error.what();
  }
  return "";
}

TEST(Quantization, ModulesHaveTheirOwnDefaults) {
  const Quantization q = parse(R"({"bits":3,"group_size":128,"mode":"affine","a.x":{"bits":8},"a.y":true,"a.z":false,
                                  "a.w":{},"a.v":{"group_size":32}})");
  EXPECT_EQ(q.of("a.x").format, (AffineFormat{8, 64}));
  EXPECT_EQ(q.of("a.v").format, (AffineFormat{4, 32}));
  EXPECT_EQ(q.of("a.y").format, (AffineFormat{3, 128}));
  EXPECT_EQ(q.of("a.y").rule, ModuleRule::packed);
  EXPECT_EQ(q.of("a.z").rule, ModuleRule::plain);
  EXPECT_EQ(q.of("a.w").rule, ModuleRule::plain);
  EXPECT_EQ(q.of("other").rule, ModuleRule::unsaid);
  EXPECT_EQ(q.of("other").format, (AffineFormat{3, 128}));
}

TEST(Quantization, SpellingsOfOneModuleAreOneModule) {
  for (const char* spelling : {"language_model.model.layers.1.mlp.up_proj", "model.language_model.layers.1.mlp.up_proj",
                               "model.layers.1.mlp.up_proj", "layers.1.mlp.up_proj"}) {
    const Quantization q = parse(fmt::format(R"({{"bits":4,"{}":{{"bits":6}}}})", spelling).c_str());
    EXPECT_EQ(q.of("language_model.model.layers.1.mlp.up_proj").format, (AffineFormat{6, 64}));
    EXPECT_EQ(q.of("model.layers.1.mlp.up_proj").format, (AffineFormat{6, 64}));
  }
  EXPECT_THAT(message_of([] { parse(R"({"model.a.b":{"bits":6},"language_model.model.a.b":{"bits":8}})"); }),
              HasSubstr("disagree"));
}

TEST(Quantization, TheBlockIsFoundWhereverWritersPutIt) {
  const json block = {{"bits", 5}, {"group_size", 32}};
  for (const json& config : {json{{"quantization", block}}, json{{"quantization_config", block}},
                             json{{"text_config", {{"quantization_config", block}}}},
                             json{{"quantization", block}, {"quantization_config", {{"quant_method", "gptq"}}}}}) {
    EXPECT_EQ(Quantization::parse(config).global(), (AffineFormat{5, 32})) << config;
  }
  EXPECT_EQ(Quantization::parse(json::object()).global(), std::nullopt);
}

TEST(Quantization, ForeignFormatsAreRefusedByName) {
  for (const char* method : {"gptq", "awq", "mxfp4", "compressed-tensors", "bitnet", "modelopt", "exl3"}) {
    ErrorKind kind = ErrorKind::internal;
    const std::string message = message_of(
        [&] { Quantization::parse(json{{"quantization_config", {{"quant_method", method}, {"bits", 4}}}}); }, &kind);
    EXPECT_THAT(message, HasSubstr(method));
    EXPECT_EQ(kind, ErrorKind::unsupported);
  }
  EXPECT_THAT(message_of([] { parse(R"({"mode":"nvfp4","bits":4,"group_size":16})"); }), HasSubstr("nvfp4"));
  EXPECT_THAT(message_of([] { parse(R"({"bits":4,"a.b":{"mode":"mxfp8"}})"); }), HasSubstr("mxfp8"));
}

TEST(Quantization, MalformedBlocksListEverything) {
  const std::string message = message_of(
      [] { parse(R"({"bits":7,"group_size":"64","a.b":{"bits":1},"a.c":3,"a.d":{"group_size":4294967328}})"); });
  for (const char* part : {"bits 7", "group_size \"64\"", "a.b has bits 1", "a.c has the quantisation 3",
                           "a.d has group_size 4294967328"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
  EXPECT_THAT(message_of([] { parse("[]"); }), HasSubstr("not an object"));
}

TEST(ResolveLinear, BitsAndGroupsComeFromShapes) {
  for (const int32_t bits : {2, 3, 4, 5, 6, 8}) {
    for (const int32_t group : {32, 64, 128}) {
      SyntheticStore store(1);
      store.add_linear("m", {3, 256}, AffineFormat{bits, group});
      store.add_linear("experts", {5, 3, 256}, AffineFormat{bits, group});
      const auto q = Quantization::uniform(AffineFormat{bits, group});
      ProblemList problems;
      const Linear linear = resolve_linear(store, q, "m", std::vector<int64_t>{3, 256}, problems);
      const Linear stack = resolve_linear(store, q, "experts", std::vector<int64_t>{5, 3, 256}, problems);
      ASSERT_TRUE(problems.empty());
      EXPECT_EQ(linear.affine, (AffineFormat{bits, group}));
      EXPECT_EQ(stack.stack, 5);
      EXPECT_EQ(linear.bytes_read(), static_cast<uint64_t>(3 * (256 * bits / 8 + 256 / group * 4)));
      EXPECT_EQ(stack.bytes_read(), linear.bytes_read());
    }
  }
}

TEST(ResolveLinear, DisagreementsAreProblems) {
  SyntheticStore store(1);
  store.add_linear("packed", {4, 128}, AffineFormat{4, 64});
  store.add_linear("plain", {4, 128}, std::nullopt);
  const auto problem = [&](const char* block, const char* module, std::vector<int64_t> shape) {
    ProblemList problems;
    resolve_linear(store, block == nullptr ? Quantization() : parse(block), module, shape, problems);
    return problems.empty() ? std::string() : fmt::format("{}", fmt::join(problems.all(), "; "));
  };
  const char* four = R"({"bits":4,"group_size":64})";
  EXPECT_EQ(problem(four, "packed", {4, 128}), "");
  EXPECT_EQ(problem(four, "plain", {4, 128}), "");
  EXPECT_EQ(problem(nullptr, "plain", {4, 128}), "");
  EXPECT_THAT(problem(nullptr, "packed", {4, 128}), HasSubstr("config.json says that it is not"));
  EXPECT_THAT(problem(R"({"packed":false})", "packed", {4, 128}), HasSubstr("config.json says that it is not"));
  EXPECT_THAT(problem(R"({"plain":true})", "plain", {4, 128}), HasSubstr("scales is missing"));
  EXPECT_THAT(problem(R"({"bits":8})", "packed", {4, 128}), HasSubstr("config.json says 8 and 64"));
  EXPECT_THAT(problem(R"({"bits":4,"group_size":32})", "packed", {4, 128}), HasSubstr("says 4 and 32"));
  EXPECT_THAT(problem(four, "packed", {5, 128}), HasSubstr("do not fit [5, 128]"));
  EXPECT_THAT(problem(four, "packed", {4, 120}), HasSubstr("no bits and group size that exist for 120 inputs"));
  EXPECT_THAT(problem(four, "plain", {4, 64}), HasSubstr("has the shape [4, 128] instead of [4, 64]"));
  EXPECT_THAT(problem(four, "absent", {4, 64}), HasSubstr("absent.weight is missing"));
}

}  // namespace
}  // namespace tensorfold::format
