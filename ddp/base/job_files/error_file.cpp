#include "ddp/base/job_files/error_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <exception>
#include <system_error>

#include "ddp/base/atomic_file.h"
#include "ddp/base/text/json_string.h"

namespace ddp::detail {
namespace {

// Together with the JSON around them less than kMostErrorFileBytes.
constexpr size_t kMostMessageBytes = 16 * 1024;
constexpr size_t kMostCallstackBytes = 40 * 1024;

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
    AtomicFile file(path);
    file.write(json.data(), json.size());
    file.commit();
    return 0;
  } catch (const std::system_error& error) {
    return error.code().value();
  } catch (const std::exception&) {
    return EBUSY;  // another process writes the file
  }
}

}  // namespace ddp::detail
