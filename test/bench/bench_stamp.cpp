// Writes when it started (CLOCK_MONOTONIC, nanoseconds) into a file, then
// becomes COMMAND, or waits to be ended when there is none.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

int main(int argc, char** argv) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_stamp FILE [COMMAND...]\n");
    return 2;
  }
  const char* rank = std::getenv("RANK");
  const std::string path = std::string(argv[1]) + (rank ? rank : "");
  // Renamed, so that the file is complete once it is there.
  const std::string draft = path + ".new";
  std::FILE* file = std::fopen(draft.c_str(), "w");
  if (!file) {
    std::perror(draft.c_str());
    return 1;
  }
  const auto count = std::chrono::nanoseconds(now).count();
  std::fprintf(file, "%lld %d\n", static_cast<long long>(count), getpid());
  if (std::fclose(file) != 0 || std::rename(draft.c_str(), path.c_str()) != 0) {
    std::perror(path.c_str());
    return 1;
  }
  if (argc > 2) {
    execvp(argv[2], argv + 2);
    std::perror(argv[2]);
    return 1;
  }
  pause();
}
