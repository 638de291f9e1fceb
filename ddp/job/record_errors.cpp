#include "ddp/job/record_errors.h"

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <system_error>

#include <c10/util/Backtrace.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "ddp/base/cluster/worker_env.h"
#include "ddp/base/job_files/error_file.h"
#include "ddp/job/current_job.h"
#include "ddp/job/error_text.h"

namespace ddp::detail {
namespace {

std::terminate_handler terminate_before = nullptr;

std::string type_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    return type != nullptr ? c10::demangle(type->name()) : "unknown";
  }
}

/// Returns the text with a call stack; a c10::Error carries its own.
std::string callstack_of(const std::exception_ptr& error,
                         const std::string& where) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& caught) {
    return caught.what();
  } catch (...) {
    const std::string text = text_of(error);
    return where.empty() ? text : text + "\n" + where;
  }
}

/// Returns the exception's type and text: "std::runtime_error: no data".
std::string describe_error(const std::exception_ptr& error) {
  return type_of(error) + ": " + text_of(error);
}

void write_for_launcher(const std::exception_ptr& error,
                        const std::string& where) {
  const char* file = std::getenv(env::kErrorFile);
  if (file == nullptr || *file == '\0') {
    return;
  }
  ErrorRecord record;
  record.message = describe_error(error);
  record.callstack = callstack_of(error, where);
  record.time = std::time(nullptr);
  if (const int problem = write_error_file(file, to_json(record))) {
    std::fprintf(stderr,
                 "ddp: %s=%s cannot be written (%s)\n",
                 env::kErrorFile,
                 file,
                 std::generic_category().message(problem).c_str());
  }
}

/// Reports an exception that is about to end this process: to the other ranks,
/// and to the launcher's error file if there is one.
/// @param where  the call stack of the exception; may be empty.
void record_error(const std::exception_ptr& error,
                  const std::string& where) noexcept {
  try {
    report_fatal_error(text_of(error));
    write_for_launcher(error, where);
  } catch (...) {
    // Out of memory: the process ends without a report.
  }
}

/// Flushes stdout, because abort() drops buffered output (all of it if a
/// launcher reads a pipe). Skips the flush if a terminated thread holds the
/// lock.
void flush_stdout() {
  if (::ftrylockfile(stdout) == 0) {
    std::fflush(stdout);
    ::funlockfile(stdout);
  }
}

[[noreturn]] void record_and_terminate() {
  if (const auto error = std::current_exception()) {
    record_error(error, c10::get_lazy_backtrace(/*frames_to_skip=*/1)->get());
  }
  flush_stdout();  // may block while the pipe is full
  terminate_before();
  std::abort();
}

}  // namespace

void install_terminate_handler() {
  static const bool once = [] {
    terminate_before = std::set_terminate(record_and_terminate);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace ddp::detail

namespace ddp {

int record_errors(const std::function<int()>& body) {
  try {
    return body();
  } catch (...) {
    const auto error = std::current_exception();
    detail::record_error(error, "");
    std::fprintf(stderr, "%s\n", detail::describe_error(error).c_str());
    return 1;
  }
}

}  // namespace ddp
