#include "cli/verify_process.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"

namespace tensorfold::cli {
namespace {

using Json = nlohmann::json;

Json to_json(const engine::VerifyQuestion& question) {
  const backend::SamplingSettings& s = question.sampling;
  return {{"kind", question.kind},
          {"prompt", question.prompt},
          {"expected", question.expected},
          {"temperature", s.temperature},
          {"top_k", s.top_k},
          {"top_p", s.top_p},
          {"min_p", s.min_p},
          {"seed", s.seed}};
}

engine::VerifyQuestion question_of(const Json& json) {
  engine::VerifyQuestion question;
  question.kind = json.at("kind");
  question.prompt = json.at("prompt").get<std::vector<int32_t>>();
  question.expected = json.at("expected").get<std::vector<int32_t>>();
  json.at("temperature").get_to(question.sampling.temperature);
  json.at("top_k").get_to(question.sampling.top_k);
  json.at("top_p").get_to(question.sampling.top_p);
  json.at("min_p").get_to(question.sampling.min_p);
  json.at("seed").get_to(question.sampling.seed);
  return question;
}

void write(const std::filesystem::path& path, const Json& json) {
  std::ofstream file(path);
  file << json;
  file.close();
  if (!file) fail(ErrorKind::io, "cannot write {}", path.string());
}

Json read(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) fail(ErrorKind::io, "cannot read {}", path.string());
  Json json = Json::parse(file, nullptr, false);
  if (json.is_discarded()) fail(ErrorKind::corrupt_file, "{} is not whole", path.string());
  return json;
}

}  // namespace

void write_serving(const std::filesystem::path& path, const engine::VerifyServing& serving) {
  Json json = {{"world", serving.world},
               {"drafter", serving.drafter},
               {"drafts", serving.fixed_drafts},
               {"parallel", serving.parallel},
               {"prefill_rows", serving.prefill_rows},
               {"tier", serving.tier},
               {"seed", serving.seed},
               {"known", Json::array()},
               {"questions", Json::array()}};
  for (const auto& question : serving.known) json["known"].push_back(to_json(question));
  for (const auto& question : serving.questions) json["questions"].push_back(to_json(question));
  write(path, json);
}

engine::VerifyServing read_serving(const std::filesystem::path& path) {
  const Json json = read(path);
  engine::VerifyServing serving;
  try {
    json.at("world").get_to(serving.world);
    json.at("drafter").get_to(serving.drafter);
    json.at("drafts").get_to(serving.fixed_drafts);
    json.at("parallel").get_to(serving.parallel);
    json.at("prefill_rows").get_to(serving.prefill_rows);
    json.at("tier").get_to(serving.tier);
    json.at("seed").get_to(serving.seed);
    for (const Json& question : json.at("known")) serving.known.push_back(question_of(question));
    for (const Json& question : json.at("questions")) serving.questions.push_back(question_of(question));
  } catch (const Json::exception& problem) {
    fail(ErrorKind::corrupt_file, "{}: {}", path.string(), problem.what());
  }
  return serving;
}

void write_answers(const std::filesystem::path& path, const std::vector<engine::VerifyAnswer>& answers) {
  Json json = Json::array();
  for (const auto& answer : answers) {
    json.push_back({{"tokens", answer.tokens},
                    {"drafted", answer.drafted},
                    {"accepted", answer.accepted},
                    {"cached", answer.cached_tokens},
                    {"error", answer.error}});
  }
  write(path, json);
}

std::vector<engine::VerifyAnswer> read_answers(const std::filesystem::path& path) {
  std::vector<engine::VerifyAnswer> answers;
  try {
    for (const Json& json : read(path)) {
      answers.push_back({.tokens = json.at("tokens").get<std::vector<int32_t>>(),
                         .drafted = json.at("drafted"),
                         .accepted = json.at("accepted"),
                         .cached_tokens = json.at("cached"),
                         .error = json.at("error")});
    }
  } catch (const Json::exception& problem) {
    fail(ErrorKind::corrupt_file, "{}: {}", path.string(), problem.what());
  }
  return answers;
}

void run_this_program(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"tensorfold"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int problem = ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (problem != 0) fail(ErrorKind::io, "cannot start another process: {}", std::strerror(problem));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail(ErrorKind::io, "a process that was started got lost: {}", std::strerror(errno));
  }
  if (status != 0) fail(ErrorKind::io, "a process that was started failed (status {})", status);
}

}  // namespace tensorfold::cli
