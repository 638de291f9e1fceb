// bench_stamp FILE COMMAND...: writes its start time (CLOCK_MONOTONIC,
// nanoseconds), its process id and a newline to FILE, then executes COMMAND.
#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace {

bool write_stamp(const char* path) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::FILE* file = std::fopen(path, "w");
  if (!file) {
    std::perror(path);
    return false;
  }
  const auto count = std::chrono::nanoseconds(now).count();
  std::fprintf(file, "%lld %d\n", static_cast<long long>(count), getpid());
  if (std::fclose(file) != 0) {
    std::perror(path);
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_stamp FILE COMMAND...\n");
    return 2;
  }
  if (!write_stamp(argv[1])) {
    return 1;
  }
  execvp(argv[2], argv + 2);
  std::perror(argv[2]);
  return 1;
}
