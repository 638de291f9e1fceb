#include "launcher/cli/completion.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "launcher/cli/options.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using launcher::hint_of;
using Hint = launcher::ValueHint;
using Replies = std::vector<std::string>;

namespace {

/// All spellings of an option.
Replies spellings_of(const launcher::OptionText& option) {
  Replies spellings;
  std::istringstream names(option.names);
  for (std::string name; std::getline(names >> std::ws, name, ',');) {
    spellings.push_back(name);
    std::replace(name.begin() + 2, name.end(), '-', '_');
    if (name != spellings.back()) {
      spellings.push_back(name);
    }
  }
  return spellings;
}

std::vector<launcher::OptionText> all_options() {
  std::vector<launcher::OptionText> options;
  for (const auto& group : launcher::option_table()) {
    options.insert(options.end(), group.options.begin(), group.options.end());
  }
  return options;
}

/// What a bash with our script completes in a folder that holds train.py and
/// the folder logs.
class Bash {
 public:
  Bash() {
    ddp::test::write_file(folder_ / "script",
                          launcher::bash_completion(launcher::option_table()));
    output_of("mkdir here here/logs && touch here/train.py");
  }

  /// @param words of the command line, as readline parts it; the last one is
  ///   to be completed
  /// @param line as it is typed
  Replies completed(const std::string& words, const std::string& line) const {
    ddp::test::write_file(folder_ / "ask",
                          "set -u\n. ../script\nCOMP_WORDS=(" + words +
                              ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
                              "COMP_LINE='" +
                              line +
                              "'\nCOMP_POINT=${#COMP_LINE}\n_ddprun\n"
                              "printf '%s\\n' \"${COMPREPLY[@]}\" | sort\n");
    std::istringstream output(output_of("cd here && bash --norc ../ask 2>&1"));
    Replies replies;
    for (std::string reply; std::getline(output, reply);) {
      if (!reply.empty()) {
        replies.push_back(reply);
      }
    }
    return replies;
  }

 private:
  std::string output_of(const std::string& command) const {
    const std::string line = "cd '" + folder_.path() + "' && " + command;
    FILE* pipe = ::popen(line.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string output;
    for (int c; (c = std::fgetc(pipe)) != EOF;) {
      output += static_cast<char>(c);
    }
    CHECK(::pclose(pipe) == 0);
    return output;
  }

  ddp::test::TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("the type of a value says what a shell completes") {
  CHECK(hint_of("N|auto|gpu").words == Replies{"auto", "gpu"});
  CHECK(hint_of("etcd-v2").words == Replies{"etcd-v2"});
  CHECK(hint_of("FILE").kind == Hint::Kind::files);
  CHECK(hint_of("DIR").kind == Hint::Kind::folders);
  CHECK(hint_of("COMMAND").kind == Hint::Kind::commands);
  CHECK(hint_of("HOST[:PORT]").kind == Hint::Kind::hosts);
  CHECK(hint_of("N|MIN:MAX").kind == Hint::Kind::unknown);
  CHECK(hint_of("K=V,...").kind == Hint::Kind::unknown);
}

TEST_CASE("values of a closed set are those that the parser takes") {
  int sets = 0;
  for (const auto& option : all_options()) {
    const auto words = hint_of(option.type).words;
    sets += words.empty() ? 0 : 1;
    for (const std::string& word : words) {
      CAPTURE(option.names, word);
      CHECK_NOTHROW(
          launcher::parse_options({option.names, word, "./train"}, {}));
    }
  }
  CHECK(sets >= 7);
}

TEST_CASE("the scripts have each option of the table, in both spellings") {
  const auto options = all_options();
  CHECK(options.size() > 40);
  const std::string bash =
      launcher::bash_completion(launcher::option_table()) + " ";
  const std::string zsh = launcher::zsh_completion(launcher::option_table());
  for (const auto& option : options) {
    for (const std::string& name : spellings_of(option)) {
      CAPTURE(name);
      CHECK((Contains(" " + name + " ") || Contains("'" + name + " ") ||
             Contains(" " + name + "'"))
                .match(bash));
      const bool is_long = name.rfind("--", 0) == 0;
      const std::string end = option.type.empty() ? "[" : is_long ? "=[" : "+[";
      CHECK_THAT(zsh, Contains("'*" + name + end));
    }
  }
  CHECK_THAT(zsh, Contains("#compdef ddprun\n"));
  CHECK_THAT(zsh, Contains(":(lines pty inherit)'"));
}

TEST_CASE("zsh is given no sign of a help text for one of its own") {
  const std::string script = launcher::zsh_completion(
      {{"T", {{"-a, --a-b", "HOST[:PORT]", "it's [1]: a\\b\nc"}}}});
  const std::string spec = R"([it'\''s \[1\]\: a\\b c]:HOST\[\:PORT\]:_hosts')";
  CHECK_THAT(script, Contains("  '*-a+" + spec + " \\\n"));
  CHECK_THAT(script, Contains("  '*--a-b=" + spec + " \\\n"));
  CHECK_THAT(script, Contains("  \"$hidden\"'*--a_b=" + spec + " \\\n"));
}

TEST_CASE("zsh reads its script") {
  if (std::system("command -v zsh >/dev/null") != 0) {
    WARN("no zsh here: its script was not read by one");
    return;
  }
  const ddp::test::TemporaryFolder folder;
  ddp::test::write_file(folder / "_ddprun",
                        launcher::zsh_completion(launcher::option_table()));
  CHECK(std::system(("zsh -n '" + (folder / "_ddprun") + "'").c_str()) == 0);
}

TEST_CASE("bash completes names of options") {
  const Bash bash;
  CHECK(bash.completed("ddprun --rdzv-b", "ddprun --rdzv-b") ==
        Replies{"--rdzv-backend"});
  CHECK(bash.completed("ddprun --no_p", "ddprun --no_p") ==
        Replies{"--no_python"});
  CHECK(bash.completed("ddprun --standalone --tee 3 --red",
                       "ddprun --standalone --tee 3 --red") ==
        Replies{"--redirects"});
  Replies names;
  for (const auto& option : all_options()) {
    for (const std::string& name : spellings_of(option)) {
      if (name.find('_') == std::string::npos) {
        names.push_back(name);
      }
    }
  }
  Replies shown = bash.completed("ddprun -", "ddprun -");
  std::sort(names.begin(), names.end());
  std::sort(shown.begin(), shown.end());
  CHECK(shown == names);
}

TEST_CASE("bash completes values") {
  const Bash bash;
  const Replies outputs{"inherit", "lines", "pty"};
  CHECK(bash.completed("ddprun --output ''", "ddprun --output ") == outputs);
  CHECK(bash.completed("ddprun --output =", "ddprun --output=") == outputs);
  CHECK(bash.completed("ddprun --output = p", "ddprun --output=p") ==
        Replies{"pty"});
  // Readline without = among its COMP_WORDBREAKS.
  CHECK(bash.completed("ddprun --output=p", "ddprun --output=p") ==
        Replies{"--output=pty"});
  CHECK(bash.completed("ddprun --numa_binding e", "ddprun --numa_binding e") ==
        Replies{"exclusive"});
  CHECK(bash.completed("ddprun --nproc g", "ddprun --nproc g") ==
        Replies{"gpu"});
  CHECK(bash.completed("ddprun --log-dir ''", "ddprun --log-dir ") ==
        Replies{"logs"});
  CHECK(bash.completed("ddprun --log-dir = l", "ddprun --log-dir=l") ==
        Replies{"logs"});
  CHECK(bash.completed("ddprun --report-json t", "ddprun --report-json t") ==
        Replies{"train.py"});
  CHECK(bash.completed("ddprun -r ''", "ddprun -r ").empty());
}

TEST_CASE("bash completes files for the program and what follows it") {
  const Bash bash;
  const Replies files{"logs", "train.py"};
  CHECK(bash.completed("ddprun ''", "ddprun ") == files);
  CHECK(bash.completed("ddprun --rdzv-endpoint host : 1 ''",
                       "ddprun --rdzv-endpoint host:1 ") == files);
  CHECK(bash.completed("ddprun -r3 --nproc = 2 t", "ddprun -r3 --nproc=2 t") ==
        Replies{"train.py"});
  CHECK(bash.completed("ddprun -- ''", "ddprun -- ") == files);
  CHECK(bash.completed("ddprun train.py ''", "ddprun train.py ") == files);
  CHECK(bash.completed("ddprun train.py --output ''",
                       "ddprun train.py --output ") == files);
  CHECK(bash.completed("ddprun train.py --outp", "ddprun train.py --outp")
            .empty());
}
