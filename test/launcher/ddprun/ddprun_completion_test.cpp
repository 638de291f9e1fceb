#include <algorithm>
#include <cstdio>
#include <sstream>

#include "launcher/options/options.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

namespace {

using Replies = std::vector<std::string>;

/// Returns bash's completions of the last word, sorted.
Replies completed(const std::string& words) {
  const ddp::test::TemporaryFolder folder;
  ddp::test::write_file(folder / "ask",
                        "set -u\n. '" DDPRUN_COMPLETION "'\nCOMP_WORDS=(" +
                            words +
                            ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
                            "_ddprun\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n");
  FILE* bash =
      ::popen(("bash --norc '" + (folder / "ask") + "' 2>&1").c_str(), "r");
  REQUIRE(bash != nullptr);
  std::string output;
  for (int c; (c = std::fgetc(bash)) != EOF;) {
    output += static_cast<char>(c);
  }
  CHECK(::pclose(bash) == 0);
  std::istringstream lines(output);
  Replies replies;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) {
      replies.push_back(line);
    }
  }
  std::sort(replies.begin(), replies.end());
  return replies;
}

}  // namespace

TEST_CASE(
    "bash completes each option of ddprun, and leaves files to readline") {
  Replies names{"-h", "--help", "--version"};
  for (const auto& group : launcher::option_table()) {
    for (const auto& option : group.options) {
      std::istringstream spellings(option.names);
      for (std::string name; std::getline(spellings >> std::ws, name, ',');) {
        names.push_back(name);
      }
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  CHECK(names.size() > 40);
  CHECK(completed("ddprun -") == names);
  CHECK(completed("ddprun --standalone --rdzv-b") == Replies{"--rdzv-backend"});
  CHECK(completed("ddprun ''").empty());
  CHECK(completed("ddprun --tee 3 ./tr").empty());
}
