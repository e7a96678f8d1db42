#include <functional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint_files.h"
#include "format/safetensors_header.h"
#include "format/safetensors_store.h"

namespace tensorfold::format {
namespace {

using ::tensorfold::testing::safetensors_bytes;
using ::tensorfold::testing::TemporaryDirectory;
using ::tensorfold::testing::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& action, ErrorKind* kind = nullptr) {
  try {
    action();
  } catch (const Error& error) {
    if (kind != nullptr) *kind = error.kind();
    return error.what();
  }
  return "";
}

std::string read_all(const TensorStore& store, const std::string& name) {
  const TensorInfo* tensor = store.find(name);
  std::string bytes(tensor->bytes, '?');
  store.read(*tensor, 0, std::as_writable_bytes(std::span<char>(bytes.data(), bytes.size())));
  store.release(*tensor);
  return bytes;
}

TEST(SafetensorsStore, ReadsTensorsAtAnyAlignmentAndPadding) {
  for (size_t padding = 0; padding < 9; ++padding) {
    TemporaryDirectory directory;
    write_file(
        directory.path() / "model.safetensors",
        safetensors_bytes({{"a", {"U8", {3}, "abc"}}, {"b", {"BF16", {2, 1}, "wxyz"}}, {"c", {"F32", {}, "1234"}}},
                          padding, "null"));
    const auto store = SafetensorsStore::open_directory(directory.path());
    EXPECT_THAT(store->names(), ElementsAre("a", "b", "c"));
    EXPECT_EQ(read_all(*store, "b"), "wxyz");
    EXPECT_EQ(read_all(*store, "c"), "1234");
    EXPECT_THAT(store->find("b")->shape, ElementsAre(2, 1));
    EXPECT_EQ(store->find("d"), nullptr);
    char middle[2] = {};
    store->read(*store->find("b"), 1, std::as_writable_bytes(std::span(middle)));
    EXPECT_EQ(std::string(middle, 2), "xy");
  }
}

TEST(SafetensorsStore, MergesShardsAndSideFiles) {
  TemporaryDirectory directory;
  const auto path = directory.path();
  write_file(path / "model-00001-of-00002.safetensors", safetensors_bytes({{"a", {"U8", {1}, "1"}}}));
  write_file(path / "model-00002-of-00002.safetensors", safetensors_bytes({{"b", {"U8", {1}, "2"}}}));
  write_file(path / "mtp-4bit.safetensors", safetensors_bytes({{"m", {"U8", {1}, "3"}}}, 0, R"({"format":"side"})"));
  write_file(path / "model.safetensors.index.json",
             R"({"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})");
  const auto store = SafetensorsStore::open_directory(path);
  EXPECT_EQ(read_all(*store, "a") + read_all(*store, "b") + read_all(*store, "m"), "123");
  const auto& side = store->parts()[static_cast<size_t>(store->find("m")->file)];
  EXPECT_FALSE(side.indexed);
  EXPECT_EQ(side.metadata.at("format"), "side");
  EXPECT_EQ(store->tensor_bytes(), 3U);
}

TEST(SafetensorsStore, ListsEveryProblemOfEveryFileInOneLine) {
  TemporaryDirectory directory;
  const auto path = directory.path();
  write_file(path / "one.safetensors", safetensors_bytes(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1]},)"
                                                         R"("b":{"dtype":"U7","shape":[1],"data_offsets":[0,1]}})",
                                                         "xy"));
  write_file(path / "two.safetensors", "short");
  write_file(path / "model.safetensors.index.json",
             R"({"weight_map":{"z":"gone.safetensors","y":"../one.safetensors"}})");
  ErrorKind kind = ErrorKind::internal;
  const std::string message = message_of([&] { SafetensorsStore::open_directory(path); }, &kind);
  EXPECT_EQ(kind, ErrorKind::corrupt_file);
  for (const char* part : {"tensor a spans", "unknown dtype U7", "two.safetensors: 5 bytes", "gone.safetensors",
                           "../one.safetensors is not the name"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(SafetensorsStore, AFileThatShrinksLaterIsAnError) {
  TemporaryDirectory directory;
  const auto path = directory.path() / "model.safetensors";
  write_file(path, safetensors_bytes({{"a", {"U8", {4}, "abcd"}}}));
  const auto store = SafetensorsStore::open_directory(directory.path());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 2);
  ErrorKind kind = ErrorKind::internal;
  EXPECT_THAT(message_of([&] { read_all(*store, "a"); }, &kind), HasSubstr("2 more were expected"));
  EXPECT_EQ(kind, ErrorKind::corrupt_file);
}

struct DamagedHeader {
  const char* header;
  const char* data;
  const char* expected;  // part of the message
};

class DamagedHeaders : public ::testing::TestWithParam<DamagedHeader> {};

TEST_P(DamagedHeaders, GiveOneClearError) {
  TemporaryDirectory directory;
  write_file(directory.path() / "model.safetensors", safetensors_bytes(GetParam().header, GetParam().data));
  ErrorKind kind = ErrorKind::internal;
  const std::string message = message_of([&] { SafetensorsStore::open_directory(directory.path()); }, &kind);
  EXPECT_EQ(kind, ErrorKind::corrupt_file);
  EXPECT_THAT(message, HasSubstr(GetParam().expected));
  EXPECT_THAT(message, HasSubstr("model.safetensors"));
  for (const char character : message) EXPECT_GE(character, 0x20) << message;
}

const DamagedHeader kDamagedHeaders[] = {
    {"", "", "header of 0 bytes"},
    {"[]", "", "must be a JSON object, not a list"},
    {"3", "", "must be a JSON object, not the number 3"},
    {"-3", "", "must be a JSON object"},
    {"null", "", "must be a JSON object"},
    {"true", "", "must be a JSON object"},
    {"\"x\"", "", "must be a JSON object"},
    {"{", "", "not valid JSON"},
    {"{}}", "", "not valid JSON"},
    {"{\"a\":}", "", "not valid JSON"},
    {"{\"a\xff\":{}}", "", "not valid JSON"},
    {"{\"a\":1}", "", "header's a cannot be the number 1"},
    {"{\"a\":null}", "", "header's a cannot be null"},
    {"{\"a\":[]}", "", "header's a cannot be a list"},
    {"{\"a\":{}}", "", "needs dtype, shape and two data_offsets"},
    {"{\"__metadata__\":3}", "", "__metadata__ cannot be"},
    {"{\"__metadata__\":{\"format\":3}}", "", "format cannot be the number 3"},
    {"{\"__metadata__\":{\"format\":{}}}", "", "format cannot be an object"},
    {R"({"a":{"dtype":"F32","shape":[1]}})", "", "needs dtype, shape and two data_offsets"},
    {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", "1234", "needs dtype"},
    {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", "1234", "needs dtype"},
    {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", "1234", "dtype cannot be the number 7"},
    {R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", "1234", "unknown dtype F33"},
    {R"({"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}})", "12345678", "unknown dtype C64"},
    {R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", "1234", "shape cannot be the number 1"},
    {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234", "shape cannot be the number -1"},
    {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "1234", "shape cannot be the number 1.0"},
    {R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", "1234", "shape cannot be the string"},
    {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", "1234", "shape cannot be a list"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234", "needs 8 bytes"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234", "spans bytes 4 to 0"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "1234", "two data_offsets"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "1234", "two data_offsets"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", "1234", "data_offsets cannot be the number -4"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "123", "1 bytes past the end"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,0]}})", "1234", "spans bytes"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[99999999999999999999999,4]}})", "1234", "cannot be the number"},
    {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", "", "impossibly large"},
    {R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4]}})", "1234", "impossibly large"},
    {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "", "impossibly large"},
    {R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", "1", "too long"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":1}})", "1", "extra cannot be"},
    {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
     "123", "tensors a and b overlap"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
     "12", "tensor a is described twice"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "12", "belong to no tensor"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
     "123", "belong to no tensor"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "123",
     "2 bytes behind the last tensor belong to none"},
    {R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "1", "dtype cannot be given twice"},
    {R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", "1", "shape cannot be given twice"},
    {"{\"a\\nb\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,1]}}", "1", "a\\x0ab"},
};

INSTANTIATE_TEST_SUITE_P(Corpus, DamagedHeaders, ::testing::ValuesIn(kDamagedHeaders));

TEST(SafetensorsHeader, AbsurdLengthsAreRefusedBeforeAnythingIsAllocated) {
  for (const uint64_t length : {uint64_t{100'000'000}, uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 7, uint64_t{25}}) {
    TemporaryDirectory directory;
    std::string bytes(8, '\0');
    for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>((length >> (8 * i)) & 0xFF);
    write_file(directory.path() / "model.safetensors", bytes + "{}" + std::string(20, ' '));
    EXPECT_THAT(message_of([&] { SafetensorsStore::open_directory(directory.path()); }),
                HasSubstr(fmt::format("a header of {} bytes cannot be", length)));
  }
}

TEST(SafetensorsHeader, DeepNestingDoesNotExhaustTheStack) {
  ProblemList problems;
  parse_safetensors_header("{\"a\":{\"shape\":" + std::string(5'000'000, '['), 0, 0, "f", problems);
  EXPECT_FALSE(problems.empty());
}

/// Every byte of a small header replaced by something else: an error or a store that reads what it claims.
TEST(SafetensorsHeader, AnyOneByteChangeIsAnErrorOrStaysInsideTheFile) {
  const std::string good = safetensors_bytes({{"ab", {"U8", {3}, "abc"}}, {"c", {"F16", {2, 1}, "wxyz"}}}, 2, "null");
  std::mt19937 random(std::random_device{}());
  TemporaryDirectory directory;
  const auto path = directory.path() / "model.safetensors";
  for (size_t position = 0; position < good.size(); ++position) {
    std::string bad = good;
    bad[position] = static_cast<char>(random() & 0xFF);
    write_file(path, bad);
    message_of([&] {
      const auto store = SafetensorsStore::open_file(path);
      for (const std::string& name : store->names()) read_all(*store, name);
    });
  }
}

TEST(SafetensorsIndex, DamagedIndexFilesGiveOneClearError) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not valid JSON at byte"},
      {"[]", "not a JSON object"},
      {"{\"weight_map\":[]}", "has no weight_map"},
      {"{\"weight_map\":{\"a\":3}}", "3 is not the name of a safetensors file"},
      {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "/etc/passwd is not the name"},
      {"{\"weight_map\":{\"a\":\"..\\\\x.safetensors\"}}", "is not the name"},
      {"{\"weight_map\":{\"a\":\"m.safetensors\\u0000\"}}", "is not the name"},
      {"{\"weight_map\":{\"a\":\"other.safetensors\"}}", "other.safetensors"},
      {"{\"weight_map\":{\"b\":\"model.safetensors\"}}",
       "places tensor b in model.safetensors, which does not hold it"},
  };
  for (const auto& [index, expected] : cases) {
    TemporaryDirectory directory;
    write_file(directory.path() / "model.safetensors", safetensors_bytes({{"a", {"U8", {1}, "1"}}}));
    write_file(directory.path() / "model.safetensors.index.json", index);
    EXPECT_THAT(message_of([&] { SafetensorsStore::open_directory(directory.path()); }), HasSubstr(expected));
  }
}

TEST(SafetensorsIndex, ANameInTwoFilesIsAnError) {
  TemporaryDirectory directory;
  write_file(directory.path() / "a.safetensors", safetensors_bytes({{"x", {"U8", {1}, "1"}}}));
  write_file(directory.path() / "b.safetensors", safetensors_bytes({{"x", {"U8", {1}, "1"}}}));
  EXPECT_THAT(message_of([&] { SafetensorsStore::open_directory(directory.path()); }),
              HasSubstr("tensor x is in both a.safetensors and b.safetensors"));
}

TEST(SafetensorsStore, AnEmptyOrAbsentDirectoryIsNotFound) {
  TemporaryDirectory directory;
  ErrorKind kind = ErrorKind::internal;
  message_of([&] { SafetensorsStore::open_directory(directory.path()); }, &kind);
  EXPECT_EQ(kind, ErrorKind::not_found);
  kind = ErrorKind::internal;
  message_of([&] { SafetensorsStore::open_directory(directory.path() / "gone"); }, &kind);
  EXPECT_EQ(kind, ErrorKind::not_found);
}

}  // namespace
}  // namespace tensorfold::format
