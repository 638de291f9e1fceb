#include "ddp/base/job_files/error_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <exception>

#include "ddp/base/file_descriptor.h"
#include "ddp/base/text/json_string.h"

namespace ddp::detail {
namespace {

// Together with the JSON around them less than kMostErrorFileBytes.
constexpr size_t kMostMessageBytes = 16 * 1024;
constexpr size_t kMostCallstackBytes = 40 * 1024;

/// Returns a name unique to this process and call: two threads may fail at
/// once.
std::string temporary_for(const std::string& path) {
  static std::atomic<int> count{0};
  return path + "." + std::to_string(::getpid()) + "." +
         std::to_string(count++) + ".tmp";
}

/// Returns 0 or errno.
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto written = retry_interrupted(
        [&] { return ::write(fd, bytes.data(), bytes.size()); });
    if (written < 0) {
      return errno;
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

int replace_file(const std::string& path, std::string_view bytes) {
  const std::string temporary = temporary_for(path);
  FileDescriptor file(
      ::open(temporary.c_str(),
             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
             0666));
  if (!file) {
    return errno;
  }
  int error = write_all(file.get(), bytes);
  file.reset();
  if (error == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) {
    error = errno;
  }
  if (error != 0) {
    ::unlink(temporary.c_str());
  }
  return error;
}

}  // namespace

std::string to_json(const ErrorRecord& record) {
  std::string json = R"({"message":{"message":)" +
                     json_string(record.message, kMostMessageBytes) +
                     R"(,"extraInfo":{"py_callstack":)" +
                     json_string(record.callstack, kMostCallstackBytes) +
                     R"(,"timestamp":")" + std::to_string(record.time) +
                     R"("})";
  if (record.exit_code) {
    json += R"(,"errorCode":)" + std::to_string(*record.exit_code);
  }
  return json + "}}";
}

int write_error_file(const std::string& path, std::string_view json) noexcept {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    return S_ISCHR(status.st_mode) ? 0 : EEXIST;
  }
  try {
    return replace_file(path, json);
  } catch (const std::exception&) {
    return ENOMEM;
  }
}

}  // namespace ddp::detail
