#include "ddp/base/job_files/worker_ends.h"

#include <fcntl.h>
#include <unistd.h>

#include <exception>
#include <fstream>
#include <sstream>

#include "ddp/base/file_descriptor.h"

namespace ddp::detail {

void add_worker_end(const std::string& path, const WorkerEnd& end) noexcept {
  try {
    const std::string line = std::to_string(end.rank) + ' ' + end.how + '\n';
    const FileDescriptor file(
        ::open(path.c_str(),
               O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC,
               0600));
    retry_interrupted(
        [&] { return ::write(file.get(), line.data(), line.size()); });
  } catch (const std::exception&) {
    // Out of memory: the end is not recorded.
  }
}

std::optional<WorkerEnd> first_worker_end(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  WorkerEnd end;
  std::istringstream text(line);
  // At the end of the file the line may be incomplete.
  if (file.eof() || !(text >> end.rank >> std::ws) ||
      !std::getline(text, end.how)) {
    return std::nullopt;
  }
  return end;
}

}  // namespace ddp::detail
