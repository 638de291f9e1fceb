// ddprun_man MAN BASH ZSH: writes the manual page of ddprun and what shells
// complete into these files. For the build alone.
#include <fstream>
#include <string>

#include "launcher/cli/completion.h"
#include "launcher/cli/options.h"

namespace {

bool is_written(const char* path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return static_cast<bool>(file);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    return 2;
  }
  const auto options = launcher::option_table();
  return is_written(argv[1], launcher::manual()) &&
                 is_written(argv[2], launcher::bash_completion(options)) &&
                 is_written(argv[3], launcher::zsh_completion(options))
             ? 0
             : 1;
}
