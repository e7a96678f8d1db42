#include "cli/option_pages.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/service_unit.h"
#include "shared_data.h"

namespace tensorfold::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A small table with every kind of option.
class OptionPages : public ::testing::Test {
 protected:
  OptionPages() {
    Command serve;
    serve.name = "serve";
    serve.summary = "Serve a model";
    serve.description = ".starts with a dot, costs 'nothing'";
    serve.positionals.push_back({"MODEL", "where it is", &model_});
    serve.options.push_back({"--port", "N", "listen here", "Endpoint", &port_, {}});
    serve.options.push_back({"--backend", "B", "what computes", "Endpoint", &backend_, {"auto", "cpu", "cuda"}});
    serve.options.push_back({"--alias", "ID", "further name", "Names", &aliases_, {}});
    serve.options.push_back({"--no-drafts", "", "one token a round, it's slow", "", &drafts_, {}, true});
    Command pull;
    pull.name = "pull";
    pull.summary = "Download models";
    pull.positionals.push_back({"REPO", "which", &aliases_});
    commands_ = {serve, pull};
  }

  /// What a shell prints for `script`, or nothing where the shell is missing.
  static std::optional<std::string> shell(const std::string& name, const std::string& script) {
    if (std::system(("command -v " + name + " >/dev/null 2>&1").c_str()) != 0) return std::nullopt;
    const auto path = std::filesystem::temp_directory_path() / ("tensorfold-pages-" + std::to_string(::getpid()));
    std::ofstream(path) << script;
    std::FILE* pipe = ::popen((name + " " + path.string() + " 2>&1").c_str(), "r");
    std::string output;
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) output += static_cast<char>(c);
    ::pclose(pipe);
    std::filesystem::remove(path);
    return output;
  }

  std::string complete_in_bash(const std::string& words, int index) const {
    const auto output = shell("bash", completions(commands_, "bash") + "COMP_WORDS=(" + words + ") COMP_CWORD=" +
                                          std::to_string(index) + "\n_tensorfold\necho \"${COMPREPLY[@]}\"\n");
    return output.value_or("no bash");
  }

  std::string model_;
  int32_t port_ = 8080;
  std::string backend_ = "auto";
  std::vector<std::string> aliases_;
  bool drafts_ = true;
  std::vector<Command> commands_;
};

TEST_F(OptionPages, TheManualHasEveryOptionOnceWithItsDefaultAndChoices) {
  const std::string page = manual_page(commands_, "1.2.3");
  for (const char* part : {"\\-\\-port", "\\-\\-backend", "\\-\\-alias", "\\-\\-no\\-drafts"}) {
    const size_t first = page.find(part);
    ASSERT_NE(first, std::string::npos) << part;
    EXPECT_EQ(page.find(part, first + 1), std::string::npos) << part;
  }
  EXPECT_THAT(page, HasSubstr("default 8080"));
  EXPECT_THAT(page, HasSubstr("(auto, cpu, cuda)"));
  EXPECT_THAT(page, HasSubstr("may be repeated"));
  EXPECT_THAT(page, HasSubstr("\n\\&.starts with a dot"));
}

TEST_F(OptionPages, TheManualReadsAtEightyColumnsWithoutWarnings) {
  const auto page =
      shell("bash", "command -v groff >/dev/null || { echo none; exit; }\ngroff -man -ww -Tutf8 -rLL=78n <<'END'\n" +
                        manual_page(commands_, "1.2.3") + "END\n");
  if (!page || page == "none\n") GTEST_SKIP() << "groff is not installed";
  EXPECT_THAT(*page, Not(HasSubstr("warning")));
  EXPECT_THAT(*page, HasSubstr("it's slow"));
}

TEST_F(OptionPages, BashCompletesCommandsOptionsAndChoices) {
  if (complete_in_bash("tensorfold ''", 1) == "no bash") GTEST_SKIP() << "bash is not installed";
  EXPECT_THAT(complete_in_bash("tensorfold pu", 1), HasSubstr("pull"));
  EXPECT_EQ(complete_in_bash("tensorfold serve --po", 2), "--port\n");
  EXPECT_THAT(complete_in_bash("tensorfold serve --backend cu", 3), HasSubstr("cuda"));
  EXPECT_EQ(complete_in_bash("tensorfold pull --po", 2), "\n");
}

TEST_F(OptionPages, TheOtherShellsGetEveryOptionQuoted) {
  EXPECT_THAT(completions(commands_, "zsh"), HasSubstr("it'\\''s slow"));
  EXPECT_THAT(completions(commands_, "fish"), HasSubstr("-l backend -d 'what computes' -x -a 'auto cpu cuda'"));
  EXPECT_THROW(completions(commands_, "tcsh"), Error);
  const auto checked = shell(
      "zsh", "cat > /tmp/x.$$ <<'END'\n" + completions(commands_, "zsh") + "END\nzsh -n /tmp/x.$$; rm /tmp/x.$$\n");
  EXPECT_EQ(checked.value_or(""), "");
}

TEST(EveryCommand, HasAHelpPageOfEightyColumnsWithEachOfItsOptions) {
  for (const Command& command : all_commands()) {
    std::stringstream page(help_page(command));
    for (std::string line; std::getline(page, line);) EXPECT_LE(line.size(), 80u) << line;
    for (const Option& option : command.options) EXPECT_THAT(page.str(), HasSubstr("  " + option.name)) << command.name;
  }
}

TEST_F(OptionPages, HelpIsWrappedBesideItsOption) {
  commands_[0].options[0].help = "a long sentence that says much more about this than one line of a terminal takes";
  EXPECT_THAT(help_page(commands_[0]),
              HasSubstr("  --port N                a long sentence that says much more about this than\n"
                        "                          one line of a terminal takes; default 8080.\n"));
  EXPECT_THAT(help_page(commands_[0]), HasSubstr("Usage: tensorfold serve MODEL [OPTIONS]\n"));
}

TEST(EveryCommand, IsDescribedInPlainSentencesThatFitTheirPlace) {
  for (const Command& command : all_commands()) {
    EXPECT_LE(command.summary.size(), 62u) << command.name << ": a line of the list is 80 columns";
    EXPECT_FALSE(command.summary.ends_with('.')) << command.name;
    for (const Option& option : command.options) {
      EXPECT_TRUE(option.name.starts_with("--")) << option.name;
      EXPECT_FALSE(option.help.empty() || option.help.ends_with('.')) << command.name << " " << option.name;
    }
  }
}

std::string project_file(const std::string& name) {
  std::ifstream in(testing::project_path(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Documentation, OfTheCommandsIsWhatTheProgramPrints) {
  EXPECT_EQ(project_file("docs/commands.md"), markdown_page(all_commands()))
      << "write it anew: tensorfold manual --markdown > docs/commands.md";
}

TEST(Documentation, OfTheCommandsFitsEightyColumns) {
  std::stringstream page(overview_page(all_commands()) + markdown_page(all_commands()));
  bool in_block = false;
  for (std::string line; std::getline(page, line);) {
    if (line == "```") in_block = !in_block;
    if (in_block) {
      EXPECT_LE(line.size(), 80u) << line;
    }
  }
}

TEST(Documentation, NamesEveryVariableThatTheSourceReads) {
  std::string names;
  for (const EnvironmentVariable& variable : environment_variables())
    names += variable.name + " " + variable.help + "\n";
  size_t found = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(testing::project_path("src"))) {
    if (entry.path().extension() != ".cpp") continue;
    const std::string source = project_file(std::filesystem::relative(entry.path(), testing::project_path("")));
    const std::regex pattern(R"re("((TENSORFOLD|HF|HUGGING_?FACE|XDG)_[A-Z_]+)")re");
    for (std::sregex_iterator it(source.begin(), source.end(), pattern), end; it != end; ++it, ++found)
      EXPECT_THAT(names, HasSubstr((*it)[1].str())) << entry.path();
  }
  EXPECT_GT(found, 10u);
}

TEST(Documentation, OfCompletionsAndManualComesFromTheSameTable) {
  const std::string manual = manual_page(all_commands(), "1.2.3");
  for (const Command& command : all_commands()) {
    for (const Option& option : command.options) {
      std::string dashed = option.name;
      for (size_t at = 0; (at = dashed.find('-', at)) != std::string::npos; at += 2) dashed.insert(at, "\\");
      EXPECT_THAT(manual, HasSubstr(dashed));
      for (const char* shell : {"bash", "zsh"})
        EXPECT_THAT(completions(all_commands(), shell), HasSubstr(option.name)) << shell;
      EXPECT_THAT(completions(all_commands(), "fish"), HasSubstr("-l " + option.name.substr(2)));
    }
  }
}

TEST(ServiceUnits, StartTheGivenProgramWithItsModel) {
  const std::string text =
      unit_text({"/opt/tensorfold/bin/tensorfold", "ORG/Model", "--port 9000", "tensorfold", false});
  EXPECT_THAT(text, HasSubstr("ExecStart=\"/opt/tensorfold/bin/tensorfold\" serve \"ORG/Model\" --port 9000\n"));
  EXPECT_THAT(text, HasSubstr("WantedBy=default.target"));
  EXPECT_THAT(text, Not(HasSubstr("User=")));
}

TEST(ServiceUnits, CannotBeTalkedIntoFurtherLines) {
  EXPECT_THROW(unit_text({"/bin/tensorfold", "a\nExecStart=/bin/sh", "", "x", false}), Error);
  EXPECT_THROW(unit_text({"/bin/tensorfold", "a\" \"b", "", "x", false}), Error);
  EXPECT_THROW(unit_text({"/bin/tensorfold", "a", "--port 1\nUser=root", "x", false}), Error);
  EXPECT_THROW(unit_text({"/bin/tensorfold", "a", "", "x\nUser=root", true}), Error);
  EXPECT_THAT(unit_text({"/bin/tensorfold", "/models/100%$x", "", "x", false}), HasSubstr("\"/models/100%%$$x\""));
}

TEST(ServiceUnits, HoldNoSpecifierInTheDescriptionAndNameHiddenFolders) {
  EXPECT_THAT(unit_text({"/bin/tensorfold", "/m/100%h", "", "x", false}), HasSubstr("serving /m/100%%h\n"));
  for (const char* path : {"/root/m", "/home/me/m", "/tmp", "/var/tmp/m"}) EXPECT_TRUE(is_hidden_from_services(path));
  for (const char* path : {"/opt/m", "/homes/m", "ORG/Model"}) EXPECT_FALSE(is_hidden_from_services(path));
}

TEST(ServiceUnits, PassSystemdsOwnCheck) {
  if (std::system("command -v systemd-analyze >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "systemd-analyze is not installed";
  const auto folder = std::filesystem::temp_directory_path() / ("tensorfold-units-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  for (const bool system : {false, true}) {
    std::ofstream(folder / "tensorfold.service")
        << unit_text({"/bin/true", "ORG/Model", "--port 9000", "root", system});
    const std::string command = std::string("systemd-analyze verify --man=no ") + (system ? "" : "--user ") +
                                (folder / "tensorfold.service").string() + " > " + (folder / "log").string() + " 2>&1";
    const int code = std::system(command.c_str());
    std::ifstream log(folder / "log");
    std::stringstream said;
    said << log.rdbuf();
    EXPECT_THAT(said.str(), Not(HasSubstr("tensorfold.service:"))) << "exit code " << code;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tensorfold::cli
