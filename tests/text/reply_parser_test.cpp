// Replies to reasoning, content and calls: the recorded vectors in every cut, and what is held back.
#include "text/reply_parser.h"

#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "shared_data.h"
#include "text/growing_arguments.h"
#include "text/jinja/json_value.h"
#include "text/jinja/marked_text.h"

namespace tensorfold::text {
namespace {

using nlohmann::ordered_json;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

/// Deltas joined.
struct Reply {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;
  friend bool operator==(const Reply&, const Reply&) = default;
};

std::ostream& operator<<(std::ostream& out, const Reply& reply) {
  out << "reasoning: " << reply.reasoning << "\ncontent: " << reply.content << "\n";
  for (const ToolCall& call : reply.calls) out << "call: " << call.name << " " << call.arguments << "\n";
  return out;
}

void join(Reply& reply, const std::vector<ReplyDelta>& deltas) {
  for (const ReplyDelta& delta : deltas) {
    switch (delta.kind) {
      case ReplyDeltaKind::reasoning:
        reply.reasoning += delta.text;
        break;
      case ReplyDeltaKind::content:
        reply.content += delta.text;
        break;
      case ReplyDeltaKind::content_was_reasoning:
        reply.reasoning = std::exchange(reply.content, {});
        break;
      case ReplyDeltaKind::tool_call_begin:
        EXPECT_EQ(delta.call_index, reply.calls.size());
        reply.calls.push_back({delta.call_name, ""});
        break;
      case ReplyDeltaKind::tool_call_arguments:
        ASSERT_EQ(delta.call_index + 1, reply.calls.size());
        reply.calls.back().arguments += delta.text;
        break;
    }
  }
}

Reply parse_pieces(ReplyParser parser, const std::vector<std::string>& pieces) {
  Reply reply;
  for (const std::string& piece : pieces) join(reply, parser.feed(piece));
  join(reply, parser.finish());
  return reply;
}

/// The text in pieces of so many code points; the rest is the last piece.
std::vector<std::string> cut(const std::string& text, const std::vector<std::size_t>& counts) {
  const auto offsets = jinja::code_point_offsets(text);
  std::vector<std::string> pieces;
  std::size_t at = 0;
  for (const std::size_t count : counts) {
    const std::size_t end = std::min(at + count, offsets.size() - 1);
    pieces.push_back(text.substr(offsets[at], offsets[end] - offsets[at]));
    at = end;
  }
  pieces.push_back(text.substr(offsets[at]));
  return pieces;
}

std::vector<std::string> bytes_of(const std::string& text) {
  std::vector<std::string> bytes;
  for (const char byte : text) bytes.emplace_back(1, byte);
  return bytes;
}

struct Vector {
  std::string name;
  std::string text;
  ReplyFormat format;
  OfferedTools tools;
  ReplyOptions options;
  Reply expected;
};

std::vector<Vector> read_vectors() {
  const auto path = testing::shared_path("golden/text/toolcalls.json");
  std::vector<Vector> vectors;
  if (!path) return vectors;
  const auto document = ordered_json::parse(read_file(*path));
  for (const auto& recorded : document["vectors"]) {
    Vector vector;
    vector.name = recorded["name"];
    vector.text = recorded["text"];
    const bool channel = recorded["family"] == "gemma4";
    vector.format.reasoning = channel ? ReasoningMarkers::channel : ReasoningMarkers::think;
    vector.tools = OfferedTools(jinja::from_json(recorded["tools"]));
    vector.options.starts_in_reasoning = recorded["thinking"].get<bool>() && !channel;
    vector.options.parallel_tool_calls = recorded["parallel_tool_calls"];
    const auto& expected = recorded["expect"];
    vector.expected.reasoning = expected["reasoning_content"];
    vector.expected.content = expected["content"];
    for (const auto& call : expected["tool_calls"]) {
      vector.expected.calls.push_back({call["name"], call["arguments_json"]});
    }
    vectors.push_back(std::move(vector));
  }
  return vectors;
}

ReplyParser make_parser(const Vector& vector, bool streams) {
  ReplyOptions options = vector.options;
  options.stream_arguments = streams;
  return ReplyParser(vector.format, vector.tools, options);
}

/// Calls that are cut or broken after their arguments began: streamed, they have begun.
bool breaks_after_it_began(const std::string& name) {
  static const std::set<std::string> names = {"qwen_malformed_no_outer_close", "qwen_malformed_cut_in_value",
                                              "hermes_trailing_comma_malformed", "hermes_unclosed_text"};
  return names.count(name) > 0;
}

TEST(ReplyVectors, WholeRepliesAreReadAsRecorded) {
  const auto vectors = read_vectors();
  if (vectors.empty()) GTEST_SKIP() << "no shared folder with reference vectors";
  for (const Vector& vector : vectors) {
    EXPECT_EQ(parse_pieces(make_parser(vector, false), {vector.text}), vector.expected) << vector.name;
  }
  EXPECT_EQ(vectors.size(), 162U);
}

TEST(ReplyVectors, EveryCutGivesTheSame) {
  const auto vectors = read_vectors();
  if (vectors.empty()) GTEST_SKIP() << "no shared folder with reference vectors";
  std::mt19937 random(std::random_device{}());
  for (const Vector& vector : vectors) {
    for (const bool streams : {false, true}) {
      if (streams && breaks_after_it_began(vector.name)) continue;
      EXPECT_EQ(parse_pieces(make_parser(vector, streams), bytes_of(vector.text)), vector.expected) << vector.name;
      for (std::size_t at = 0; at <= vector.text.size(); ++at) {
        ASSERT_EQ(parse_pieces(make_parser(vector, streams), {vector.text.substr(0, at), vector.text.substr(at)}),
                  vector.expected)
            << vector.name << " cut at byte " << at;
      }
      for (int round = 0; round < 20; ++round) {
        std::vector<std::size_t> counts;
        for (int i = 0; i < 30; ++i) counts.push_back(random() % 9);
        ASSERT_EQ(parse_pieces(make_parser(vector, streams), cut(vector.text, counts)), vector.expected) << vector.name;
      }
    }
  }
}

TEST(ReplyVectors, RecordedChunkingsGiveTheSame) {
  const auto path = testing::shared_path("golden/text/toolcalls.json");
  if (!path) GTEST_SKIP() << "no shared folder with reference vectors";
  const auto vectors = read_vectors();
  const auto document = ordered_json::parse(read_file(*path));
  std::size_t checked = 0;
  for (const auto& stream : document["streams"]) {
    const auto vector = std::find_if(vectors.begin(), vectors.end(),
                                     [&](const Vector& candidate) { return candidate.name == stream["vector"]; });
    ASSERT_NE(vector, vectors.end());
    for (const auto& counts : stream["chunkings"]) {
      EXPECT_EQ(parse_pieces(make_parser(*vector, false), cut(vector->text, counts.get<std::vector<std::size_t>>())),
                vector->expected)
          << vector->name;
      ++checked;
    }
  }
  EXPECT_GT(checked, 300U);
}

OfferedTools write_file_tool() {
  return OfferedTools(jinja::parse_json(R"([{"type": "function", "function": {"name": "write_file", "parameters":
      {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "array"}}}}}])"));
}

/// What is out after each piece.
std::vector<std::string> progress(ReplyParser parser, const std::vector<std::string>& pieces) {
  std::vector<std::string> shown;
  for (const std::string& piece : pieces) {
    Reply reply;
    std::string text;
    for (const ReplyDelta& delta : parser.feed(piece)) {
      text += delta.kind == ReplyDeltaKind::tool_call_begin ? "#" + delta.call_name : delta.text;
    }
    shown.push_back(text);
  }
  return shown;
}

TEST(ReplyParser, ArgumentsGoOutAsTheyGrow) {
  ReplyOptions options;
  options.stream_arguments = true;
  const auto shown =
      progress(ReplyParser({ReasoningMarkers::think}, write_file_tool(), options),
               {"<tool_call>\n<function=write_file>\n", "<parameter=path>", "\n", "a\"b", "c\n", "d", "</para",
                "meter>\n<parameter=lines>", "\n[1, ", "2]\n</parameter>", "\n</function>", "\n</tool_call>"});
  const std::vector<std::string> expected = {"", "#write_file{\"path\":\"", "", "a\\\"b", "c", "\\nd",
                                             "", "\",\"lines\":",           "", "[1,2]",  "}", ""};
  EXPECT_EQ(shown, expected);
}

TEST(ReplyParser, ArgumentsGoOutAsTheyGrowInEverySyntax) {
  ReplyOptions options;
  options.stream_arguments = true;
  const auto parser = [&](ReasoningMarkers markers) { return ReplyParser({markers}, write_file_tool(), options); };
  const auto think = [&] { return parser(ReasoningMarkers::think); };
  EXPECT_EQ(progress(think(), {"<tool_call>{\"name\": \"write_file\",", " \"arguments\": ", "{ \"path\" ", ": \"a",
                               "\\", "n\\u00e9", "\\ud83d", "\\ude00b\"", ", \"lines\": [1", ".50, tr", "ue]", "}", "}",
                               "</tool_call>"}),
            (std::vector<std::string>{"", "", "#write_file{\"path\"", ":\"a", "", "\\né", "", "😀b\"", ",\"lines\":[",
                                      "1.5", ",true]", "}", "", ""}));
  EXPECT_EQ(progress(think(), {"<tool_call>write_file", "<arg_key>path</arg_key>\n", "<arg_value>", "a\"", "\nb</arg",
                               "s></arg_", "value>", "<arg_key>lines</arg_key><arg_value>[1, ", "2]", "</arg_value>",
                               "</tool_call>"}),
            (std::vector<std::string>{"", "", "#write_file{\"path\":\"", "a\\\"", "\\nb", "</args>", "\"",
                                      ",\"lines\":", "", "[1,2]", "}"}));
  EXPECT_EQ(
      progress(parser(ReasoningMarkers::channel), {"<|tool_call>call:write", "_file", "{", "pa", "th:<|", "\"|>a\"",
                                                   "{b<|\"", "|>", ",lines:[1", ",", "{x:null}]", "}", "<tool_call|>"}),
      (std::vector<std::string>{"", "", "#write_file{", "", "\"path\":", "\"a\\\"", "{b", "\"", ",\"lines\":[", "1",
                                ",{\"x\":null}]", "}", ""}));
}

/// A random JSON value as text, with what may vary in its spelling.
std::string random_json(std::mt19937& random, int depth) {
  static const std::vector<std::string> scalars = {
      "0", "-12", "1.50", "1e3", "2E-7", "true", "false", "null", "12345678901234567890"};
  static const std::vector<std::string> letters = {
      "a", "é", "😀", "\\n",          "\\\"", "\\\\",   "\\/", "\\u00e9", "\\ud83d\\ude00",
      "{", "]", ",",  "</tool_call>", " ",    "\\u0001"};
  static const std::vector<std::string> blanks = {"", "", " ", "\n\t"};
  const auto blank = [&] { return blanks[random() % blanks.size()]; };
  const auto string = [&] {
    std::string text = "\"";
    for (auto size = random() % 6; size > 0; --size) text += letters[random() % letters.size()];
    return text + "\"";
  };
  const auto kind = random() % (depth > 0 ? 4 : 2);
  if (kind == 0) return scalars[random() % scalars.size()];
  if (kind == 1) return string();
  std::string text = kind == 2 ? "[" : "{";
  const auto size = random() % 4;
  for (std::size_t i = 0; i < size; ++i) {
    text += (i > 0 ? "," : "") + blank();
    if (kind == 3) text += "\"" + std::to_string(i) + string().substr(1) + blank() + ":" + blank();
    text += random_json(random, depth - 1) + blank();
  }
  return text + (kind == 2 ? "]" : "}");
}

TEST(GrowingArguments, AreWhatParsingTheWholeTextGives) {
  std::mt19937 random(std::random_device{}());
  std::size_t objects = 0;
  while (objects < 500) {
    const std::string text = random_json(random, 4);
    if (text[0] != '{') continue;
    ++objects;
    const std::string expected = compact_json(jinja::parse_json(text));
    std::string written;
    GrowingArguments arguments(ArgumentSyntax::json, 0, written);
    for (std::size_t size = 1; size < text.size(); ++size) {
      ASSERT_EQ(arguments.advance(text.substr(0, size)), GrowingArguments::Status::more) << text;
      ASSERT_TRUE(expected.starts_with(written)) << text << "\n" << written;
    }
    ASSERT_EQ(arguments.advance(text + "}"), GrowingArguments::Status::complete) << text;
    EXPECT_EQ(arguments.end(), text.size());
    EXPECT_EQ(written, expected);
  }
}

TEST(GrowingArguments, BreakOffWhereTheParserWould) {
  for (const char* text :
       {"[1]", "{1:2}", "{\"a\" 1}", "{\"a\":}", "{\"a\":01}", "{\"a\":1,}", "{\"a\":[1,]}", "{\"a\":tru}",
        "{\"a\":\"\\x\"}", "{\"a\":\"\\ud83d\"}", "{\"a\":\"\\ud83dx", "{\"a\":\"\n\"}", "{\"a\":[1}", "{\"a\":1 2}",
        "{\"a\":\"b\"\"c\"}", "{,}", "{\"a\":1e999}"}) {
    for (const bool by_bytes : {false, true}) {
      std::string written;
      GrowingArguments arguments(ArgumentSyntax::json, 0, written);
      auto status = GrowingArguments::Status::more;
      const std::string whole = text;
      for (std::size_t size = by_bytes ? 1 : whole.size(); size <= whole.size(); ++size)
        status = arguments.advance(whole.substr(0, size));
      EXPECT_EQ(status, GrowingArguments::Status::broken) << text;
    }
  }
}

TEST(ReplyParser, HoldsBackNoMoreThanItMust) {
  const ReplyFormat think = {ReasoningMarkers::think};
  ReplyOptions thinking;
  thinking.starts_in_reasoning = true;
  EXPECT_EQ(
      progress(ReplyParser(think, {}, thinking), {"a", " b<", "/thi", "s</thin", "k>", "\n\n", "c", " <tool_call>"}),
      (std::vector<std::string>{"a", " b", "", "</this", "", "", "c", " <tool_call>"}));
  EXPECT_EQ(progress(ReplyParser({}, write_file_tool()), {"x <", "b", ">", " <tool_", "box ", "y", "\xE4\xB8", "\xAD"}),
            (std::vector<std::string>{"x", "", " <b>", "", " <tool_box", " y", "", "中"}));
  EXPECT_EQ(progress(ReplyParser({}, write_file_tool()), {"{\"cit", "y\": 1}", "{"}),
            (std::vector<std::string>{"", "{\"city\": 1}", "{"}));
}

TEST(ReplyParser, AReplyMayOpenItsReasoningItself) {
  const Reply reply = parse_pieces(ReplyParser({ReasoningMarkers::think}, {}), {"\n<think>\nplan\n</think>\n\nanswer"});
  EXPECT_EQ(reply.reasoning, "plan");
  EXPECT_EQ(reply.content, "answer");
}

TEST(ReplyParser, ABlockThatNobodyOpenedMayBeClosed) {
  const auto parse = [](const std::string& text, OfferedTools tools) {
    const Reply whole = parse_pieces(ReplyParser({ReasoningMarkers::think}, tools), {text});
    EXPECT_EQ(parse_pieces(ReplyParser({ReasoningMarkers::think}, tools), bytes_of(text)), whole) << text;
    return whole;
  };
  for (const OfferedTools& tools : {OfferedTools(), write_file_tool()}) {
    EXPECT_EQ(parse("r1</think>A", tools), (Reply{"r1", "A", {}}));
    EXPECT_EQ(parse("</think>\n\nA", tools), (Reply{"", "A", {}}));
    EXPECT_EQ(parse("r1</think>A</think>B", tools), (Reply{"r1", "A</think>B", {}}));
    EXPECT_EQ(parse("The tag `</think>` ends it", tools), (Reply{"", "The tag `</think>` ends it", {}}));
    EXPECT_EQ(parse("<think>r</think>A </think> B", tools), (Reply{"r", "A </think> B", {}}));
  }
  const Reply call = parse("r1 </think>{\"name\": \"write_file\", \"arguments\": {}}", write_file_tool());
  EXPECT_EQ(call.calls, (std::vector<ToolCall>{{"write_file", "{}"}}));
}

TEST(ReplyParser, ACallCutWhileItGrowsStaysUnfinished) {
  ReplyOptions options;
  options.stream_arguments = true;
  const Reply reply = parse_pieces(ReplyParser({}, write_file_tool(), options),
                                   {"<tool_call><function=write_file><parameter=path>\n/etc/pas"});
  ASSERT_EQ(reply.calls.size(), 1U);
  EXPECT_EQ(reply.calls[0].arguments, "{\"path\":\"/etc/pas");
  EXPECT_EQ(reply.content, "");
}

TEST(ReplyParser, ACallThatWasAskedForIsDroppedOnlyWhenItWasCut) {
  const std::string broken = "<tool_call><function=write_file><parameter=path>\n/etc</tool_call>";
  ReplyOptions options;
  options.drop_cut_calls = true;
  for (const bool was_cut : {false, true}) {
    ReplyParser parser({}, write_file_tool(), options);
    std::string content;
    for (const auto& delta : parser.feed(broken)) content += delta.text;
    for (const auto& delta : parser.finish(was_cut)) content += delta.text;
    EXPECT_EQ(content, was_cut ? "" : broken);
  }
}

TEST(ReplyParser, ReasoningOnlyHoldsNoMarkers) {
  ReplyOptions options;
  options.only_reasoning = true;
  const Reply reply = parse_pieces(ReplyParser({ReasoningMarkers::think}, write_file_tool(), options),
                                   {" a</th", "ink>b<tool_", "call> c "});
  EXPECT_EQ(reply, (Reply{"a</think>b<tool_call> c", "", {}}));
}

TEST(ReplyParser, BrokenBytesNeverReachTheClient) {
  const Reply reply = parse_pieces(ReplyParser({}, {}), {"a\xFF", "b\xE4", "\xB8"});
  EXPECT_EQ(reply.content.substr(0, 5),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(jinja::MarkedText(reply.content).view().find('\xFF'), std::string_view::npos);
}

TEST(ReplyParser, CharactersThatAreSplitWaitForTheirRest) {
  EXPECT_EQ(progress(ReplyParser({}, {}), {"\xF0\x9F", "\x98\x80", "\x20\x6F\x6B"}),
            (std::vector<std::string>{"", "😀", " ok"}));
  ReplyOptions options;
  options.starts_in_reasoning = true;
  options.stream_arguments = true;
  EXPECT_EQ(
      progress(ReplyParser({ReasoningMarkers::think}, write_file_tool(), options),
               {"\xF0\x9F", "\x98\x80</think>",
                "<tool_call>{\"name\":\"write_file\",\"arguments\":{\"path\":\"\xE5\x8C", "\x97\"}}</tool_call>"}),
      (std::vector<std::string>{"", "😀", "#write_file{\"path\":\"", "北\"}"}));
  const Reply cut = parse_pieces(ReplyParser({}, {}), {"ok\xF0\x9F\x98"});
  EXPECT_EQ(cut.content, "ok\xEF\xBF\xBD") << "one replacement for one incomplete character";
}

TEST(ReplyParser, ANameTooLongForATagIsTheSameInEveryCut) {
  for (const std::size_t length : {255U, 256U, 257U, 400U}) {
    const std::string text =
        "<tool_call><function=write_file><parameter=path>a</parameter><parameter=" + std::string(length, 'n') +
        ">b</parameter></function></tool_call>";
    for (const bool streams : {false, true}) {
      ReplyOptions options;
      options.stream_arguments = streams;
      const Reply whole = parse_pieces(ReplyParser({}, write_file_tool(), options), {text});
      EXPECT_EQ(parse_pieces(ReplyParser({}, write_file_tool(), options), bytes_of(text)), whole) << length;
      EXPECT_EQ(whole.content.empty(), length <= 256) << length;
    }
  }
}

TEST(ReplyParser, RandomRepliesAreTheSameInEveryCut) {
  const std::vector<std::string> parts = {"<tool_call>",
                                          "</tool_call>",
                                          "\n",
                                          " ",
                                          "<function=write_file>",
                                          "</function>",
                                          "<parameter=path>",
                                          "</parameter>",
                                          "x",
                                          "</think>",
                                          "<think>",
                                          "{\"name\": \"write_file\"",
                                          ", \"arguments\": {}}",
                                          ", \"arguments\": {",
                                          "\"path\": \"",
                                          "\"lines\":",
                                          "\\u00e9\\",
                                          "\"",
                                          ",",
                                          "1.50",
                                          "lines:[",
                                          "write_file",
                                          "<arg_key>",
                                          "path",
                                          "</arg_key>",
                                          "<arg_value>",
                                          "</arg_value>",
                                          "<|tool_call>",
                                          "call:write_file{",
                                          "path:<|\"|>",
                                          "<|\"|>",
                                          "}",
                                          "<tool_call|>",
                                          "<|channel>",
                                          "thought\n",
                                          "<channel|>",
                                          "é",
                                          "[1",
                                          "]",
                                          "```json\n",
                                          "```",
                                          "<",
                                          "<parameter=lines>",
                                          "`",
                                          "\r\n"};
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 1500; ++round) {
    std::string text;
    const int length = static_cast<int>(random() % 25) + 1;
    for (int i = 0; i < length; ++i) text += parts[random() % parts.size()];
    ReplyOptions options;
    options.starts_in_reasoning = random() % 2 == 0;
    options.parallel_tool_calls = random() % 4 != 0;
    options.stream_arguments = random() % 2 == 0;
    const ReplyFormat format = {random() % 2 == 0 ? ReasoningMarkers::think : ReasoningMarkers::channel};
    const auto parser = [&] { return ReplyParser(format, write_file_tool(), options); };
    const Reply whole = parse_pieces(parser(), {text});
    ASSERT_EQ(parse_pieces(parser(), bytes_of(text)), whole) << text;
    const std::size_t at = random() % (text.size() + 1);
    ASSERT_EQ(parse_pieces(parser(), {text.substr(0, at), text.substr(at)}), whole) << text << "\ncut at " << at;
  }
}

TEST(ReplyParser, ALongCallTakesTimeInProportionToItsLength) {
  const std::vector<std::pair<const char*, const char*>> syntaxes = {
      {"<tool_call>\n<function=write_file>\n<parameter=path>\n", "\n</parameter>\n</function>\n</tool_call>"},
      {"<tool_call>{\"name\": \"write_file\", \"arguments\": {\"path\": \"", "\"}}</tool_call>"},
      {"<tool_call>write_file<arg_key>path</arg_key><arg_value>", "</arg_value></tool_call>"},
      {"<|tool_call>call:write_file{path:<|\"|>", "<|\"|>}<tool_call|>"}};
  for (const auto& [opening, closing] : syntaxes) {
    for (const bool streams : {false, true}) {
      ReplyOptions options;
      options.stream_arguments = streams;
      ReplyParser parser({}, write_file_tool(), options);
      Reply reply;
      join(reply, parser.feed(opening));
      std::string written;
      for (int i = 0; i < 50000; ++i) {
        join(reply, parser.feed("<b>x "));
        written += "<b>x ";
      }
      join(reply, parser.feed(closing));
      join(reply, parser.finish());
      ASSERT_EQ(reply.calls.size(), 1U) << opening;
      EXPECT_EQ(reply.calls[0].arguments, "{\"path\":\"" + written + "\"}");
    }
  }
}

TEST(ReplyFormat, FollowsTheTemplateThenTheModel) {
  EXPECT_EQ(detect_reply_format("{{ '<think>\\n' }}", "").reasoning, ReasoningMarkers::think);
  EXPECT_EQ(detect_reply_format("<|channel>thought", "").reasoning, ReasoningMarkers::channel);
  EXPECT_EQ(detect_reply_format("plain", "").reasoning, ReasoningMarkers::none);
  EXPECT_EQ(detect_reply_format("", "qwen3_5").reasoning, ReasoningMarkers::think);
  const ReplyFormat think = {ReasoningMarkers::think};
  EXPECT_TRUE(prompt_opens_reasoning(think, "<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(prompt_opens_reasoning(think, "<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_TRUE(prompt_opens_reasoning({ReasoningMarkers::channel}, "<|turn>model\n<|channel>thought\n"));
  EXPECT_FALSE(prompt_opens_reasoning({ReasoningMarkers::channel}, "<|turn>model\n"));
}

TEST(OfferedTools, NeedNames) {
  EXPECT_THROW(OfferedTools(jinja::parse_json(R"([{"type": "function"}])")), Error);
  EXPECT_THROW(OfferedTools(jinja::parse_json("{}")), Error);
  const OfferedTools tools(jinja::parse_json(R"([{"name": "Flat"}])"));
  ASSERT_NE(tools.find("flat"), nullptr);
  EXPECT_EQ(tools.find("flat")->name, "Flat");
}

}  // namespace
}  // namespace tensorfold::text
