// spawn_grandchild group|daemon|hidden END: starts a process that lives
// forever, keeps stdout open and ignores SIGTERM: in this process group, as a
// daemon, or as a daemon with a cleared environment. Then exits with code END,
// or waits if END is "wait".
#include <unistd.h>
#include <csignal>
#include <cstring>
#include <string>

#include "child.h"

int main(int, char** argv) {
  const bool is_daemon = std::string(argv[1]) != "group";
  int ready[2];
  if (pipe(ready) != 0 || (is_daemon && fork() == 0)) {
    // The daemon's parent exits at once, so that the daemon is orphaned.
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
