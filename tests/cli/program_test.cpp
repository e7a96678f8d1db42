#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/command.h"

namespace tensorfold::cli {
namespace {

struct Parsed {
  std::string model;
  bool drafts = true;
  int32_t port = 8080;
  std::optional<double> temperature;
  std::vector<std::string> aliases;
  std::string level = "low";
  int runs = 0;
};

Command probe_command(Parsed& parsed, const std::string& name = "serve") {
  Command command;
  command.name = name;
  command.summary = "Serve a model";
  command.positionals.push_back({"MODEL", "where it is", &parsed.model});
  command.options.push_back({"--port", "N", "listen here", "Endpoint", &parsed.port, {}});
  command.options.push_back({"--temperature", "F", "of sampling", "", &parsed.temperature, {}});
  command.options.push_back({"--alias", "ID", "further name", "", &parsed.aliases, {}});
  command.options.push_back({"--no-drafts", "", "one token a round", "", &parsed.drafts, {}, true});
  command.options.push_back({"--drafts", "", "several tokens a round", "", &parsed.drafts, {}});
  command.options.push_back({"--level", "L", "how much", "", &parsed.level, {"low", "high"}});
  command.run = [&parsed] { return ++parsed.runs, 0; };
  return command;
}

int run_captured(const std::vector<Command>& commands, std::vector<std::string> arguments, std::string& errors) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = run_program(commands, std::move(arguments));
  errors = ::testing::internal::GetCapturedStderr();
  ::testing::internal::GetCapturedStdout();
  return code;
}

TEST(Program, StoresEveryKindOfOption) {
  Parsed parsed;
  std::string errors;
  EXPECT_EQ(run_captured({probe_command(parsed)},
                         {"serve", "a/b", "--port", "9", "--temperature", "0.25", "--alias", "x", "--alias", "y",
                          "--no-drafts", "--level", "high"},
                         errors),
            0);
  EXPECT_EQ(parsed.model, "a/b");
  EXPECT_EQ(parsed.port, 9);
  EXPECT_EQ(parsed.temperature, 0.25);
  EXPECT_THAT(parsed.aliases, ::testing::ElementsAre("x", "y"));
  EXPECT_FALSE(parsed.drafts);
  EXPECT_EQ(parsed.level, "high");
  EXPECT_EQ(parsed.runs, 1);
  EXPECT_EQ(errors, "");
}

TEST(Program, AliasDoesNotSwallowTheModel) {
  Parsed parsed;
  std::string errors;
  EXPECT_EQ(run_captured({probe_command(parsed)}, {"serve", "--alias", "x", "a/b"}, errors), 0);
  EXPECT_EQ(parsed.model, "a/b");
}

TEST(Program, ARepositoryNameAloneMeansServe) {
  Parsed parsed;
  std::string errors;
  EXPECT_EQ(run_captured({probe_command(parsed)}, {"owner/name", "--port", "1"}, errors), 0);
  EXPECT_EQ(parsed.model, "owner/name");
}

TEST(Program, BadUsageIsOneLineAndTwo) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"serve"},
                                                    {"serve", "m", "--port", "many"},
                                                    {"serve", "m", "--nonsense"},
                                                    {"serve", "m", "--level", "middle"},
                                                    {"nonsense"},
                                                    {"serve", "m", "extra"}}) {
    Parsed parsed;
    std::string errors;
    EXPECT_EQ(run_captured({probe_command(parsed)}, arguments, errors), 2) << arguments.back();
    EXPECT_THAT(errors, ::testing::StartsWith("tensorfold: "));
    EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
    EXPECT_EQ(parsed.runs, 0);
  }
}

std::string errors_of(std::vector<std::string> arguments, int expected_code) {
  Parsed parsed;
  Parsed other;
  std::string errors;
  EXPECT_EQ(run_captured({probe_command(parsed), probe_command(other, "update")}, std::move(arguments), errors),
            expected_code);
  return errors;
}

TEST(Program, SaysWhatASlipOfTheKeysProbablyMeant) {
  using ::testing::HasSubstr;
  EXPECT_THAT(errors_of({"srve", "m"}, 2), HasSubstr("no command 'srve'; did you mean serve?"));
  EXPECT_THAT(errors_of({"updaet"}, 2), HasSubstr("did you mean update?"));
  EXPECT_THAT(errors_of({"--versoin"}, 2), HasSubstr("did you mean --version?"));
  EXPECT_THAT(errors_of({"serve", "m", "--prot", "9"}, 2),
              HasSubstr("serve has no option --prot; did you mean --port?"));
  EXPECT_THAT(errors_of({"serve", "m", "--lvel=low"}, 2), HasSubstr("did you mean --level?"));
  EXPECT_THAT(errors_of({"serve", "m", "extra"}, 2), HasSubstr("serve does not take 'extra'"));
  EXPECT_THAT(errors_of({"serve"}, 2), HasSubstr("serve needs MODEL: where it is"));
  EXPECT_THAT(errors_of({"serve", "m", "--port"}, 2), HasSubstr("--port needs a value: --port N"));
  EXPECT_THAT(errors_of({"serve", "m", "--port", "1", "--port", "2"}, 2),
              HasSubstr("--port is given 2 times, but takes one value"));
  EXPECT_THAT(errors_of({"serve", "m", "--port", ""}, 2), HasSubstr("--port: a number is needed"));
  EXPECT_THAT(errors_of({"serve", "m", "--temperature", ""}, 2), HasSubstr("--temperature: a number is needed"));
  EXPECT_THAT(errors_of({"serve", "m", "--drafts", "--no-drafts"}, 2), HasSubstr("excludes"));
  EXPECT_THAT(errors_of({"xyzzy"}, 2), ::testing::Not(HasSubstr("did you mean")));
}

TEST(Program, HelpOfACommandMayBeAskedInEitherOrder) {
  ::testing::internal::CaptureStdout();
  Parsed parsed;
  EXPECT_EQ(run_program({probe_command(parsed)}, {"help", "serve"}), 0);
  const std::string asked_first = ::testing::internal::GetCapturedStdout();
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_program({probe_command(parsed)}, {"serve", "--help"}), 0);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), asked_first);
}

TEST(Program, FailureIsOneLineAndOne) {
  Parsed parsed;
  Command command = probe_command(parsed);
  command.run = []() -> int { fail(ErrorKind::not_found, "no model\nat {}", "x"); };
  std::string errors;
  EXPECT_EQ(run_captured({command}, {"serve", "m"}, errors), 1);
  EXPECT_EQ(errors, "tensorfold: no model at x\n");
}

TEST(Program, AFailureSaysSomethingNothingHarmfulAndWhatToDo) {
  Parsed parsed;
  const auto errors_for = [&](ErrorKind kind, const char* message) {
    Command command = probe_command(parsed);
    command.run = [=]() -> int { fail(kind, "{}", message); };
    std::string errors;
    EXPECT_EQ(run_captured({command}, {"serve", "m"}, errors), 1);
    return errors;
  };
  EXPECT_EQ(errors_for(ErrorKind::invalid_request, "no \x1b[2Jscreen"), "tensorfold: no \\x1b[2Jscreen\n");
  EXPECT_GT(errors_for(ErrorKind::invalid_request, "").size(), std::string("tensorfold: \n").size());
  EXPECT_THAT(errors_for(ErrorKind::corrupt_file, "x is cut short"),
              ::testing::HasSubstr("x is cut short; a file of the hub that is damaged"));
}

TEST(Program, AFullStandardOutputIsAFailure) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "there is no /dev/full";
  for (const char* argument : {"--version", "--help"}) {
    ::testing::internal::CaptureStderr();
    std::fflush(stdout);
    const int kept = ::dup(1);
    const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
    ::dup2(full, 1);
    Parsed parsed;
    const int code = run_program({probe_command(parsed)}, {argument});
    ::dup2(kept, 1);
    ::close(full);
    ::close(kept);
    std::clearerr(stdout);
    const std::string errors = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, 1) << argument;
    EXPECT_THAT(errors, ::testing::StartsWith("tensorfold: cannot write to standard output"));
    EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
  }
}

TEST(Program, HelpNamesEveryOptionAndItsDefault) {
  Parsed parsed;
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_program({probe_command(parsed)}, {"serve", "--help"}), 0);
  const std::string help = ::testing::internal::GetCapturedStdout();
  for (const char* piece : {"--port N", "8080", "--no-drafts", "--level L", "low, high", "MODEL"}) {
    EXPECT_THAT(help, ::testing::HasSubstr(piece));
  }
}

}  // namespace
}  // namespace tensorfold::cli
