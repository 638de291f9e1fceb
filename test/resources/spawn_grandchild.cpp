// spawn_grandchild group|daemon|hidden END: starts a process that lives for
// ever, holds stdout and ignores SIGTERM, in this process group, as a daemon,
// or as one that has cleared its environment. Then exits with code END, or
// waits when END is "wait".
#include <unistd.h>
#include <csignal>
#include <cstring>
#include <string>

#include "child.h"

int main(int, char** argv) {
  const bool is_daemon = std::string(argv[1]) != "group";
  int ready[2];
  if (pipe(ready) != 0 || (is_daemon && fork() == 0)) {
    // The daemon's parent: ends at once, so that it becomes an orphan.
    if (fork() != 0) {
      _exit(0);
    }
    setsid();
    for (char** entry = environ; std::string(argv[1]) == "hidden" && *entry;
         ++entry) {
      std::memset(*entry, 0, std::strlen(*entry));
    }
    std::signal(SIGTERM, SIG_IGN);
    write(ready[1], "x", 1);
    pause();
  }
  if (!is_daemon && fork() == 0) {
    std::signal(SIGTERM, SIG_IGN);
    write(ready[1], "x", 1);
    pause();
  }
  char byte = 0;
  read(ready[0], &byte, 1);
  say("ready");
  if (std::string(argv[2]) == "wait") {
    pause();
  }
  return std::atoi(argv[2]);
}
