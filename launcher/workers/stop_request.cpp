#include "launcher/workers/stop_request.h"

#include <sys/stat.h>

#include <string>

#include "ddp/base/job_files/error_file.h"
#include "launcher/base/signal_names.h"

namespace launcher {
namespace {

/// Replaces the file atomically. Returns false if the path is not a regular
/// file.
bool tell(const std::string& file, const std::string& line) {
  struct stat status {};
  return ::lstat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ddp::detail::write_error_file(file, line) == 0;
}

}  // namespace

int request_stop(std::list<Worker>& workers,
                 int number,
                 std::chrono::milliseconds time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time).count();
  const std::string line = "signal=" + signal_name(number) +
                           " seconds=" + std::to_string(seconds) + "\n";
  int told = 0;
  for (Worker& worker : workers) {
    if (!worker.has_exited && tell(worker.spec.stop_file, line)) {
      ++told;
    } else {
      worker.process.signal_group(number);
    }
  }
  return told;
}

}  // namespace launcher
