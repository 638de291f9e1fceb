#include "ddp/base/job_files/error_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "ddp/base/atomic_file.h"

namespace ddp::detail {

std::string to_json(const ErrorRecord& record) {
  using Json = nlohmann::ordered_json;
  const auto written = [&](size_t most) {
    const auto cut = [&](const std::string& text) {
      return text.size() <= most ? text : text.substr(0, most) + "...";
    };
    Json message{{"message", cut(record.message)},
                 {"extraInfo",
                  {{"py_callstack", cut(record.callstack)},
                   {"timestamp", std::to_string(record.time)}}}};
    if (record.exit_code) {
      message["errorCode"] = *record.exit_code;
    }
    // JSON readers reject bytes that are not UTF-8.
    return Json{{"message", std::move(message)}}.dump(
        -1, ' ', false, Json::error_handler_t::replace);
  };
  size_t most = kMostErrorFileBytes;
  std::string json = written(most);
  while (json.size() > kMostErrorFileBytes) {
    json = written(most /= 2);
  }
  return json;
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
