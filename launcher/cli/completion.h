#pragma once

#include <string>
#include <vector>

#include "launcher/cli/man_page.h"

// What a shell completes of a command line of ddprun: the names of its options,
// those with _ once a _ is typed; values of which the type says what they are;
// files for the program and all that follows it. Pure.
namespace launcher {

/// What the type of an option's value says of it.
struct ValueHint {
  enum class Kind { unknown, words, files, folders, commands, hosts };
  Kind kind = Kind::unknown;
  std::vector<std::string> words;  ///< of Kind::words only
};

/// "N|auto|gpu" has the words auto and gpu: what is in small letters is meant
/// as it stands. FILE, DIR, COMMAND and HOST are such.
ValueHint hint_of(const std::string& type);

/// The script that bash finds as bash-completion/completions/ddprun.
std::string bash_completion(const std::vector<OptionGroup>& groups);

/// The script that zsh finds as site-functions/_ddprun.
std::string zsh_completion(const std::vector<OptionGroup>& groups);

}  // namespace launcher
