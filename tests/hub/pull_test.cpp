// Pulls against a hub of our own: what is fetched, what is refused, and what the network may do.
#include "hub/pull.h"

#include <algorithm>
#include <thread>

#include "hub/hub_fixture.h"

namespace tensorfold::hub {
namespace {

namespace fs = std::filesystem;
using testing::commit_of;
using testing::HubFault;
using testing::HubRepo;
using testing::HubTest;
using testing::lfs_file;
using testing::plain_file;
using testing::random_bytes;
using testing::read_file;
using testing::write_file;

using Pull = HubTest;

constexpr const char* kShard = "model-00001-of-00002.safetensors";

TEST_F(Pull, FetchesWhatWeReadAndNothingElse) {
  const PullResult result = pull();
  EXPECT_EQ(result.commit, commit_of('a'));
  expect_complete(result.directory);
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(result.directory)) names.push_back(entry.path().filename());
  EXPECT_EQ(names.size(), files_.size());
  EXPECT_EQ(progress_.done, static_cast<int64_t>(progress_.begun_total));
  EXPECT_EQ(result.fetched_bytes, result.bytes);
}

TEST_F(Pull, TheLayoutIsThePythonClients) {
  const fs::path folder = settings_.cache_root / "models--ORG--Model";
  EXPECT_EQ(pull().directory, folder / "snapshots" / commit_of('a'));
  EXPECT_EQ(read_file(folder / "refs" / "main"), commit_of('a'));
  for (const auto& [name, file] : files_) {
    EXPECT_EQ(fs::read_symlink(folder / "snapshots" / commit_of('a') / name), fs::path("../../blobs") / file.etag);
    EXPECT_EQ(read_file(folder / "blobs" / file.etag), *file.content);
  }
  for (const auto& entry : fs::directory_iterator(folder / "blobs"))
    EXPECT_EQ(entry.path().extension(), "") << "left over: " << entry.path();
}

TEST_F(Pull, AllBringsTheRestToo) {
  options_.all = true;
  const PullResult result = pull();
  expect_complete(result.directory);
  EXPECT_EQ(read_file(result.directory / "README.md"), "# a model");
  EXPECT_EQ(read_file(result.directory / "original/consolidated.safetensors").size(), 2'000u);
}

TEST_F(Pull, ASecondPullAsksOnceAndFetchesNothing) {
  pull();
  hub_.forget_requests();
  EXPECT_EQ(pull().fetched_bytes, 0u);
  EXPECT_EQ(hub_.requests().size(), 1u);
}

TEST_F(Pull, LargeFilesTravelInPiecesFromTheSecondHostAndTheHubIsAskedOnceAFile) {
  pull();
  EXPECT_EQ(count_requests(kShard), 1u);
  size_t ranged = 0;
  for (const auto& request : hub_.requests())
    if (request.second_port && request.headers.contains("range")) ++ranged;
  EXPECT_EQ(ranged, 6u + 3u);
}

TEST_F(Pull, ANewRevisionSharesTheBlobsItHasInCommon) {
  pull();
  const auto shard = lfs_file(random_bytes(4 * kPiece, 40));
  hub_.change_repo("ORG/Model", [&](HubRepo& model) {
    model.commits[commit_of('b')] = model.commits[commit_of('a')];
    model.commits[commit_of('b')][kShard] = shard;
    model.revisions["main"] = commit_of('b');
  });
  const PullResult result = pull();
  EXPECT_EQ(result.commit, commit_of('b'));
  EXPECT_EQ(result.fetched_bytes, shard.content->size());
  files_[kShard] = shard;
  expect_complete(result.directory);
}

TEST_F(Pull, ARevisionThatMovesMeanwhileDoesNotMixFiles) {
  const ConfigCheck move_on = [&](const ModelPreview&) {
    hub_.change_repo("ORG/Model", [&](HubRepo& model) {
      model.commits[commit_of('b')] = model.commits[commit_of('a')];
      model.commits[commit_of('b')][kShard] = lfs_file("other weights");
      model.revisions["main"] = commit_of('b');
    });
  };
  const PullResult result = pull(move_on);
  EXPECT_EQ(result.commit, commit_of('a'));
  expect_complete(result.directory);
}

TEST_F(Pull, ANamedRevisionHasItsOwnRef) {
  hub_.change_repo("ORG/Model", [&](HubRepo& model) { model.revisions["refs/pr/7"] = commit_of('a'); });
  hub::pull(client(), cache(), *parse_repo("ORG/Model@refs/pr/7"), options_, progress_, {});
  EXPECT_EQ(cache().locate(*parse_repo("ORG/Model@refs/pr/7"))->commit, commit_of('a'));
  EXPECT_FALSE(fs::exists(settings_.cache_root / "models--ORG--Model/refs/main"));
  hub::pull(client(), cache(), *parse_repo("ORG/Model@" + commit_of('a')), options_, progress_, {});
  EXPECT_FALSE(fs::exists(settings_.cache_root / "models--ORG--Model/refs" / commit_of('a')));
}

TEST_F(Pull, TheConfigCheckSeesTheConfigAndStopsBeforeTheWeights) {
  const Error error = error_of([&] {
    pull([&](const ModelPreview& preview) {
      EXPECT_EQ(read_file(preview.directory / "config.json"), *files_["config.json"].content);
      EXPECT_EQ(preview.weight_bytes, 8 * kPiece + 77 + 1'234);
      EXPECT_EQ(preview.license, "apache-2.0");
      fail(ErrorKind::unsupported, "model_type 'other' is not known");
    });
  });
  EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  EXPECT_EQ(count_requests(kShard), 0u);
  EXPECT_FALSE(cache().read_ref(repo()));
}

TEST_F(Pull, AFullDiskIsSeenBeforeTheWeights) {
  uint64_t free = (64u << 20) + 8 * kPiece;
  options_.free_space = [&](const fs::path& folder) {
    EXPECT_TRUE(fs::is_directory(folder));
    return free;
  };
  const Error error = error_of([&] { pull(); });
  EXPECT_EQ(error.kind(), ErrorKind::capacity);
  EXPECT_EQ(count_requests(kShard), 0u);
  free += 77 + 1'234;
  expect_complete(pull().directory);
}

TEST_F(Pull, MetadataMissingFromTheListIsFoundInTheTree) {
  hub_.change_repo("ORG/Model", [](HubRepo& model) { model.lists_sizes = false; });
  expect_complete(pull().directory);
  EXPECT_GT(count_requests("/tree/"), 2u);
}

TEST_F(Pull, MetadataIsAskedFileByFileWhereThereIsNoTree) {
  hub_.change_repo("ORG/Model", [](HubRepo& model) { model.lists_sizes = model.has_tree = false; });
  expect_complete(pull().directory);
}

TEST_F(Pull, ASizeThatIsMissingOrNegativeIsAskedFor) {
  for (const bool has_tree : {true, false}) {
    hub_.change_repo("ORG/Model", [&](HubRepo& model) {
      model.lists_lfs_sizes = has_tree;
      model.false_size = -1;
      model.has_tree = has_tree;
    });
    expect_complete(pull().directory);
    fs::remove_all(settings_.cache_root);
  }
}

TEST_F(Pull, AnEmptyFileOfAnotherChecksumIsRefused) {
  hub_.change_repo("ORG/Model", [&](HubRepo& model) {
    auto empty = plain_file("");
    empty.etag = std::string(40, 'e');
    model.commits[commit_of('a')]["vocab.json"] = empty;
  });
  const Error error = error_of([&] { pull(); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt_file);
  EXPECT_NE(std::string(error.what()).find("vocab.json arrived twice with a wrong checksum"), std::string::npos);
}

TEST_F(Pull, AWaitThatTheHubAsksForIsSaid) {
  hub_.add_fault({.kind = HubFault::Kind::status, .path = "/api/", .status = 429, .headers = {"Retry-After: 1"}});
  expect_complete(pull().directory);
  EXPECT_EQ(progress_.notes, std::vector<std::string>{"the hub asks to wait 1 s"});
}

TEST_F(Pull, ATokenizerThatACacheOfThePythonToolsLacksIsFetchedForItsRevision) {
  pull();
  fs::remove_all(settings_.cache_root / "models--ORG--Model/.tensorfold");
  const fs::path tokenizer = cache().snapshot_path(repo(), commit_of('a')) / "tokenizer.json";
  fs::remove(tokenizer);
  hub_.change_repo("ORG/Model", [](HubRepo& model) {
    model.revisions["main"] = commit_of('b');
    model.commits[commit_of('b')] = {};
  });
  settings_.offline = true;
  const std::string words =
      error_of([&] { resolve_model(client(), cache(), "ORG/Model", options_, progress_, {}); }).what();
  for (const char* part : {"tokenizer.json", "HF_HUB_OFFLINE", "`tensorfold pull ORG/Model`"})
    EXPECT_NE(words.find(part), std::string::npos) << words;
  settings_.offline = false;
  hub_.forget_requests();
  EXPECT_EQ(resolve_model(client(), cache(), "ORG/Model", options_, progress_, {}), tokenizer.parent_path());
  EXPECT_EQ(read_file(tokenizer), *files_["tokenizer.json"].content);
  EXPECT_EQ(count_requests(kShard), 0u);
  hub_.forget_requests();
  resolve_model(client(), cache(), "ORG/Model", options_, progress_, {});
  EXPECT_TRUE(hub_.requests().empty()) << "a complete model asks nobody";
}

TEST_F(Pull, OneContentUnderTwoNamesIsFetchedOnce) {
  const auto same = lfs_file(random_bytes(3 * kPiece, 50));
  files_["model-00001-of-00002.safetensors"] = files_["model-00002-of-00002.safetensors"] = same;
  hub_.change_repo("ORG/Model", [&](HubRepo& model) {
    model.commits[commit_of('a')]["model-00001-of-00002.safetensors"] = same;
    model.commits[commit_of('a')]["model-00002-of-00002.safetensors"] = same;
  });
  expect_complete(pull().directory);
  EXPECT_EQ(progress_.done, static_cast<int64_t>(3 * kPiece + 1'234));
}

TEST_F(Pull, AnEmptyFileIsAFile) {
  files_["added_tokens.json"] = plain_file("");
  hub_.change_repo("ORG/Model",
                   [&](HubRepo& model) { model.commits[commit_of('a')]["added_tokens.json"] = plain_file(""); });
  const PullResult result = pull();
  EXPECT_TRUE(fs::is_regular_file(result.directory / "added_tokens.json"));
}

TEST_F(Pull, ShardsBelowAFolderComeWhenTheIndexNamesThem) {
  files_["mtp/head.safetensors"] = lfs_file(random_bytes(100, 60));
  files_["model.safetensors.index.json"] =
      plain_file(R"({"weight_map":{"a":"model-00001-of-00002.safetensors","h":"mtp/head.safetensors"}})");
  hub_.change_repo("ORG/Model", [&](HubRepo& model) {
    for (const char* name : {"mtp/head.safetensors", "model.safetensors.index.json"})
      model.commits[commit_of('a')][name] = files_[name];
  });
  const PullResult result = pull();
  expect_complete(result.directory);
  EXPECT_EQ(fs::read_symlink(result.directory / "mtp/head.safetensors").string().substr(0, 9), "../../../");
}

// --- names a hostile hub may send

class HostileNames : public HubTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(HostileNames, AreRefusedBeforeAnythingIsWritten) {
  hub_.change_repo("ORG/Model", [&](HubRepo& model) { model.extra_names = {GetParam()}; });
  EXPECT_EQ(error_of([&] { pull(); }).kind(), ErrorKind::corrupt_file);
  EXPECT_FALSE(fs::exists(settings_.cache_root));
}

INSTANTIATE_TEST_SUITE_P(Names, HostileNames,
                         ::testing::Values("../x.json", "../../refs/main", "/etc/x.json", "a/../../x.json", "a\\x.json",
                                           std::string("a\0.json", 7), "", "a//b.json", "config.json",
                                           "config.json/x.safetensors", "\x1b[2Jx.json"));

TEST_F(Pull, ACommitThatIsNoHashIsRefused) {
  hub_.change_repo("ORG/Model", [&](HubRepo& model) {
    model.commits["../../x"] = model.commits[commit_of('a')];
    model.revisions["main"] = "../../x";
  });
  EXPECT_EQ(error_of([&] { pull(); }).kind(), ErrorKind::network);
  EXPECT_FALSE(fs::exists(settings_.cache_root));
}

// --- who may read

TEST_F(Pull, AnUnknownRepositoryIsNotFoundWithAndWithoutAToken) {
  for (const bool with_token : {false, true}) {
    if (with_token) settings_.token = "good-token";
    const Error error = error_of([&] { hub::pull(client(), cache(), {"ORG", "None", ""}, options_, progress_, {}); });
    EXPECT_EQ(error.kind(), ErrorKind::not_found);
    EXPECT_NE(std::string(error.what()).find("ORG/None"), std::string::npos);
  }
}

TEST_F(Pull, AnUnknownRevisionIsNamed) {
  const Error error = error_of([&] { hub::pull(client(), cache(), {"ORG", "Model", "v9"}, options_, progress_, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::not_found);
  EXPECT_NE(std::string(error.what()).find("v9"), std::string::npos);
}

TEST_F(Pull, AGatedRepositorySaysWhatToDo) {
  hub_.change_repo("ORG/Model", [](HubRepo& model) { model.gated = true; });
  const Error without = error_of([&] { pull(); });
  EXPECT_EQ(without.kind(), ErrorKind::unauthorized);
  EXPECT_NE(std::string(without.what()).find("HF_TOKEN"), std::string::npos);
  EXPECT_NE(std::string(without.what()).find("licence"), std::string::npos);
  settings_.token = "no-access";
  settings_.token_source = "HF_TOKEN";
  EXPECT_EQ(error_of([&] { pull(); }).kind(), ErrorKind::unauthorized);
  settings_.token = "wrong";
  const Error wrong = error_of([&] { pull(); });
  EXPECT_EQ(wrong.kind(), ErrorKind::unauthorized);
  EXPECT_EQ(std::string(wrong.what()).find("wrong,"), std::string(wrong.what()).find("wrong"))
      << "the token is not shown";
  settings_.token = "good-token";
  expect_complete(pull().directory);
}

TEST_F(Pull, AHiddenRepositoryOpensWithItsToken) {
  hub_.change_repo("ORG/Model", [](HubRepo& model) { model.hidden = true; });
  EXPECT_EQ(error_of([&] { pull(); }).kind(), ErrorKind::not_found);
  settings_.token = "good-token";
  expect_complete(pull().directory);
}

TEST_F(Pull, TheTokenNeverReachesAnotherHost) {
  settings_.token = "good-token";
  testing::TestHub other;
  hub_.add_fault({.kind = HubFault::Kind::redirect, .path = "/config.json", .target = other.endpoint() + "/document"});
  other.set_document("/document", *files_["config.json"].content);
  pull();
  ASSERT_EQ(other.requests().size(), 1u);
  EXPECT_FALSE(other.requests()[0].headers.contains("authorization"));
  size_t with = 0;
  for (const auto& request : hub_.requests()) {
    EXPECT_EQ(request.headers.contains("authorization"), !request.second_port) << request.path;
    with += request.headers.contains("authorization") ? 1 : 0;
  }
  EXPECT_GT(with, 4u);
}

TEST_F(Pull, ARedirectWithinTheHubIsFollowedWithTheToken) {
  settings_.token = "good-token";
  hub_.change_repo("ORG/Model", [](HubRepo& model) { model.hidden = true; });
  hub_.add_fault({.kind = HubFault::Kind::redirect,
                  .path = "/api/models/ORG/Old",
                  .target = "/api/models/ORG/Model/revision/main"});
  HttpSession session(http_);
  EXPECT_EQ(client().model_info(session, {"ORG", "Old", ""}).commit, commit_of('a'));
}

TEST_F(Pull, RedirectsToOtherThingsThanWebPagesAreNotFollowed) {
  for (const char* target : {"file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/"}) {
    hub_.add_fault({.kind = HubFault::Kind::redirect, .path = "/api/", .target = target});
    EXPECT_EQ(error_of([&] { pull(); }).kind(), ErrorKind::network) << target;
  }
  hub_.add_fault({.kind = HubFault::Kind::redirect,
                  .path = "/api/",
                  .times = 100,
                  .target = "/api/models/ORG/Model/revision/main"});
  EXPECT_EQ(error_of([&] { pull(); }).kind(), ErrorKind::network);
}

// --- a bad network

struct NetworkCase {
  const char* name;
  HubFault fault;
};

class BadNetwork : public HubTest, public ::testing::WithParamInterface<NetworkCase> {};

TEST_P(BadNetwork, IsSurvived) {
  hub_.add_fault(GetParam().fault);
  expect_complete(pull().directory);
  EXPECT_EQ(progress_.done, static_cast<int64_t>(progress_.begun_total));
}

using Kind = HubFault::Kind;
INSTANTIATE_TEST_SUITE_P(
    Faults, BadNetwork,
    ::testing::Values(
        NetworkCase{"list_500", {.kind = Kind::status, .path = "/api/", .times = 2, .status = 500}},
        NetworkCase{"list_429", {.kind = Kind::status, .path = "/api/", .status = 429, .headers = {"Retry-After: 0"}}},
        NetworkCase{"list_dropped", {.kind = Kind::drop, .path = "/api/", .times = 3}},
        NetworkCase{"list_truncated", {.kind = Kind::truncate, .path = "/api/", .times = 2, .bytes = 100}},
        NetworkCase{"file_503", {.kind = Kind::status, .path = kShard, .times = 3, .status = 503}},
        NetworkCase{"second_host_500", {.kind = Kind::status, .path = "/signed/", .on_second_port = true, .times = 4}},
        NetworkCase{"address_ran_out",
                    {.kind = Kind::status, .path = "/signed/", .on_second_port = true, .times = 3, .status = 403}},
        NetworkCase{"bodies_truncated",
                    {.kind = Kind::truncate, .path = "/signed/", .on_second_port = true, .times = 9, .bytes = 40'000}},
        NetworkCase{"small_body_truncated", {.kind = Kind::truncate, .path = "/config.json", .times = 2, .bytes = 5}},
        NetworkCase{"connection_dropped", {.kind = Kind::drop, .path = "/signed/", .on_second_port = true, .times = 5}},
        NetworkCase{"stalled", {.kind = Kind::stall, .path = "/signed/", .on_second_port = true, .bytes = 30'000}},
        NetworkCase{
            "too_many_bytes",
            {.kind = Kind::extra_bytes, .path = "/signed/", .on_second_port = true, .times = 2, .bytes = 1'000}},
        NetworkCase{"first_range_ignored", {.kind = Kind::ignore_range, .path = "/signed/", .on_second_port = true}},
        NetworkCase{"ranges_never_answered",
                    {.kind = Kind::ignore_range, .path = "/signed/", .on_second_port = true, .times = 100}},
        NetworkCase{"weights_damaged_once",
                    {.kind = Kind::corrupt, .path = "/signed/", .on_second_port = true, .bytes = 1'000}},
        NetworkCase{"config_damaged_once", {.kind = Kind::corrupt, .path = "/config.json", .bytes = 3}}),
    [](const auto& tested) { return tested.param.name; });

TEST_F(Pull, ARangelessServerThatBreaksOffIsAskedForAllOfItAgain) {
  hub_.add_fault({.kind = Kind::ignore_range, .path = files_[kShard].etag, .on_second_port = true});
  hub_.add_fault({.kind = Kind::truncate, .path = files_[kShard].etag, .on_second_port = true, .bytes = 200'000});
  options_.piece_bytes = 1u << 20;  // one piece: the resumed request is the one whose range is ignored
  const std::string part = *files_[kShard].content;
  write_file(cache().blob_path(repo(), files_[kShard].etag).string() + ".incomplete", part.substr(0, 100'000));
  expect_complete(pull().directory);
  EXPECT_EQ(progress_.done, static_cast<int64_t>(progress_.begun_total));
}

TEST_F(Pull, ADamagedFileIsRefusedAfterTheSecondTimeAndLeavesNothing) {
  hub_.add_fault(
      {.kind = Kind::corrupt, .path = files_[kShard].etag, .on_second_port = true, .times = 100, .bytes = 1'000});
  EXPECT_EQ(error_of([&] { pull(); }).kind(), ErrorKind::corrupt_file);
  for (const auto& entry : fs::directory_iterator(settings_.cache_root / "models--ORG--Model/blobs"))
    EXPECT_FALSE(entry.path().filename().string().starts_with(files_[kShard].etag)) << entry.path();
  EXPECT_FALSE(cache().read_ref(repo()));
  hub_.clear_faults();
  expect_complete(pull().directory);
}

TEST_F(Pull, AWrongSizeIsRefused) {
  hub_.add_fault(
      {.kind = Kind::wrong_length, .path = files_[kShard].etag, .on_second_port = true, .times = 100, .bytes = 5});
  const Error error = error_of([&] { pull(); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt_file);
  EXPECT_NE(std::string(error.what()).find(kShard), std::string::npos);
}

TEST_F(Pull, AnotherEtagThanTheListedOneIsRefused) {
  hub_.add_fault({.kind = Kind::wrong_etag, .path = kShard, .times = 100});
  EXPECT_EQ(error_of([&] { pull(); }).kind(), ErrorKind::corrupt_file);
}

TEST_F(Pull, AServerThatStaysAwayIsGivenUp) {
  retry_.attempts = 3;
  hub_.add_fault({.kind = Kind::drop, .path = "/signed/", .on_second_port = true, .times = 1'000});
  EXPECT_EQ(error_of([&] { pull(); }).kind(), ErrorKind::network);
  hub_.clear_faults();
  expect_complete(pull().directory);
}

TEST_F(Pull, RetryAfterIsObeyed) {
  hub_.add_fault({.kind = Kind::status, .path = "/api/", .status = 429, .headers = {"Retry-After: 1"}});
  const auto begin = std::chrono::steady_clock::now();
  expect_complete(pull().directory);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1'000));
}

// --- stopping and going on

TEST_F(Pull, AStoppedPullGoesOnFromWhereItWas) {
  std::atomic<bool> cancel{false};
  http_.cancel = &cancel;
  hub_.set_bytes_per_second(400'000);
  std::thread stopper([&] {
    while (hub_.body_bytes_sent() < 300'000) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    cancel = true;
  });
  EXPECT_EQ(error_of([&] { pull(); }).kind(), ErrorKind::cancelled);
  stopper.join();
  EXPECT_FALSE(cache().read_ref(repo()));
  EXPECT_FALSE(Cache::missing_files({cache().snapshot_path(repo(), commit_of('a')), commit_of('a'), true}).empty());
  cancel = false;
  hub_.set_bytes_per_second(0);
  const PullResult result = pull();
  expect_complete(result.directory);
  EXPECT_GT(progress_.begun_present, 200'000u);
  EXPECT_EQ(progress_.done, static_cast<int64_t>(progress_.begun_total));
}

TEST_F(Pull, APythonClientsUnfinishedFileIsTakenOver) {
  const auto& shard = files_[kShard];
  write_file(cache().blob_path(repo(), shard.etag).string() + ".incomplete", shard.content->substr(0, 200'000));
  const PullResult result = pull();
  expect_complete(result.directory);
  EXPECT_EQ(progress_.begun_present, 200'000u);
  EXPECT_FALSE(fs::exists(cache().blob_path(repo(), shard.etag).string() + ".incomplete"));
}

TEST_F(Pull, AnUnfinishedFileWithOtherBytesCostsOneMoreDownload) {
  const auto& shard = files_[kShard];
  write_file(cache().blob_path(repo(), shard.etag).string() + ".incomplete", std::string(200'000, 'x'));
  expect_complete(pull().directory);
}

TEST_F(Pull, ADanglingLinkIsFetchedAgain) {
  const PullResult result = pull();
  fs::remove(cache().blob_path(repo(), files_[kShard].etag));
  EXPECT_FALSE(Cache::missing_files(*cache().locate(repo())).empty());
  pull();
  expect_complete(result.directory);
}

TEST_F(Pull, ABlobOfAWrongSizeIsFetchedAgain) {
  const PullResult result = pull();
  write_file(cache().blob_path(repo(), files_[kShard].etag), "short");
  pull();
  expect_complete(result.directory);
}

// --- from a name to a folder

TEST_F(Pull, AFolderResolvesToItself) {
  EXPECT_EQ(resolve_model(client(), cache(), folder_.path().string(), options_, progress_, {}), folder_.path());
  EXPECT_TRUE(hub_.requests().empty());
}

TEST_F(Pull, ACachedModelResolvesWithoutTheNetwork) {
  const fs::path directory = pull().directory;
  hub_.forget_requests();
  settings_.offline = true;
  EXPECT_EQ(resolve_model(client(), cache(), "ORG/Model", options_, progress_, {}), directory);
  fs::remove(settings_.cache_root / "models--ORG--Model/refs/main");
  EXPECT_EQ(resolve_model(client(), cache(), "ORG/Model", options_, progress_, {}), directory);
  EXPECT_FALSE(progress_.notes.empty()) << "a missing ref is said";
  EXPECT_TRUE(hub_.requests().empty());
}

TEST_F(Pull, AnIncompleteModelIsCompletedOrSaidToBeIncomplete) {
  const fs::path directory = pull().directory;
  fs::remove(cache().blob_path(repo(), files_[kShard].etag));
  settings_.offline = true;
  const Error error = error_of([&] { resolve_model(client(), cache(), "ORG/Model", options_, progress_, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::not_found);
  EXPECT_NE(std::string(error.what()).find(kShard), std::string::npos);
  settings_.offline = false;
  EXPECT_EQ(resolve_model(client(), cache(), "ORG/Model", options_, progress_, {}), directory);
  expect_complete(directory);
}

TEST_F(Pull, OfflineMakesNoRequestAtAll) {
  settings_.offline = true;
  error_of([&] { resolve_model(client(), cache(), "ORG/Model", options_, progress_, {}); });
  error_of([&] { fetch_config(client(), cache(), repo(), progress_); });
  error_of([&] { pull(); });
  EXPECT_TRUE(hub_.requests().empty());
}

TEST_F(Pull, WhatIsNeitherAFolderNorARepositoryIsSaidSo) {
  for (const char* argument : {"", "model", "./no/such", "a/b/c", "ORG/Model@"}) {
    const Error error = error_of([&] { resolve_model(client(), cache(), argument, options_, progress_, {}); });
    EXPECT_EQ(error.kind(), ErrorKind::invalid_request) << argument;
    EXPECT_NE(std::string(error.what()).find("neither a folder nor"), std::string::npos);
  }
}

TEST_F(Pull, TheConfigAloneCanBeFetchedAlsoWhereThereAreNoWeights) {
  HubRepo bare;
  bare.revisions["main"] = commit_of('c');
  bare.commits[commit_of('c')] = {{"config.json", plain_file("{}")}, {"model.gguf", lfs_file("gguf")}};
  hub_.set_repo("ORG/Bare", bare);
  const RepoId id{"ORG", "Bare", ""};
  EXPECT_EQ(read_file(fetch_config(client(), cache(), id, progress_) / "config.json"), "{}");
  EXPECT_EQ(error_of([&] { hub::pull(client(), cache(), id, options_, progress_, {}); }).kind(),
            ErrorKind::unsupported);
  const size_t before = hub_.requests().size();
  fetch_config(client(), cache(), id, progress_);
  EXPECT_EQ(hub_.requests().size(), before);
}

TEST_F(Pull, ARepositoryWithoutAConfigIsNoModel) {
  HubRepo bare;
  bare.revisions["main"] = commit_of('c');
  bare.commits[commit_of('c')] = {{"model.gguf", lfs_file("gguf")}};
  hub_.set_repo("ORG/Bare", bare);
  const Error error = error_of([&] { hub::pull(client(), cache(), {"ORG", "Bare", ""}, options_, progress_, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  EXPECT_NE(std::string(error.what()).find("GGUF"), std::string::npos);
}

TEST_F(Pull, AnUnreachableHubIsSaidSo) {
  settings_.endpoint = "http://127.0.0.1:1";
  retry_.attempts = 2;
  const Error error = error_of([&] { pull(); });
  EXPECT_EQ(error.kind(), ErrorKind::network);
  EXPECT_NE(std::string(error.what()).find("127.0.0.1"), std::string::npos);
}

TEST_F(Pull, AnAnswerThatIsNoHubsIsSaidSo) {
  hub_.set_document("/api/models/ORG/Page/revision/main", "<html>log in</html>");
  const Error error = error_of([&] { hub::pull(client(), cache(), {"ORG", "Page", ""}, options_, progress_, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::network);
}

TEST(Licences, NonCommercialOnesAreRecognised) {
  for (const char* name : {"cc-by-nc-4.0", "CC-BY-NC-SA-4.0", "flux-1-dev-non-commercial-license", "qwen-research"})
    EXPECT_TRUE(is_non_commercial(name)) << name;
  for (const char* name : {"apache-2.0", "mit", "", "llama3.1", "gemma"}) EXPECT_FALSE(is_non_commercial(name)) << name;
}

}  // namespace
}  // namespace tensorfold::hub
