// Writes when it started (CLOCK_MONOTONIC, nanoseconds) and its process into
// FILE, then becomes COMMAND. Without one it is a worker: its files are FILE,
// its rank, a dot and its restart, and that with ".stopped" at a SIGTERM, which
// ends it.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

bool write_stamp(const std::string& path) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  // Renamed, so that the file is complete once it is there.
  const std::string draft = path + ".new";
  std::FILE* file = std::fopen(draft.c_str(), "w");
  if (!file) {
    std::perror(draft.c_str());
    return false;
  }
  const auto count = std::chrono::nanoseconds(now).count();
  std::fprintf(file, "%lld %d\n", static_cast<long long>(count), getpid());
  if (std::fclose(file) != 0 || std::rename(draft.c_str(), path.c_str()) != 0) {
    std::perror(path.c_str());
    return false;
  }
  return true;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "0";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_stamp FILE [COMMAND...]\n");
    return 2;
  }
  if (argc > 2) {
    if (!write_stamp(argv[1])) {
      return 1;
    }
    execvp(argv[2], argv + 2);
    std::perror(argv[2]);
    return 1;
  }
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  const std::string path =
      argv[1] + variable("RANK") + "." + variable("TORCHELASTIC_RESTART_COUNT");
  if (!write_stamp(path)) {
    return 1;
  }
  int signal = 0;
  sigwait(&stop, &signal);
  return write_stamp(path + ".stopped") ? 0 : 1;
}
