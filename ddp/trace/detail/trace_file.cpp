#include "ddp/trace/detail/trace_file.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>

#include "ddp/base/file_descriptor.h"
#include "ddp/job/current_job.h"

namespace ddp::detail {
namespace {

// "baseTimeNanoseconds" is what LibTorch's own traces call their time 0. The
// number has the same length in all files.
constexpr const char* kTraceHead =
    "{\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":%19" SCNd64
    ",\"traceEvents\":[";
constexpr const char* kTraceEnd = "\n]}\n";
constexpr int64_t kTraceSecond = 1'000'000'000;
constexpr int64_t kTraceHour = 3600 * kTraceSecond;

std::string trace_head(int64_t origin) {
  std::array<char, 100> text{};
  const int size = std::snprintf(text.data(), text.size(), kTraceHead, origin);
  return {text.data(), static_cast<size_t>(size)};
}

/// An open trace file. A lock keeps other ranks away until its end.
class LockedFile {
 public:
  LockedFile(const std::string& path, int flags)
      : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    check(fd_.get(), "open");
    TORCH_CHECK(S_ISREG(status().st_mode), not_a_trace());
    check(::flock(fd_.get(), LOCK_EX), "flock");
  }

  size_t size() const { return static_cast<size_t>(status().st_size); }

  /// Returns when the file was last written, in nanoseconds since the epoch.
  int64_t time() const {
    const auto written = status().st_mtim;
    return written.tv_sec * kTraceSecond + written.tv_nsec;
  }

  void clear() const { check(::ftruncate(fd_.get(), 0), "ftruncate"); }

  std::string read(size_t from, size_t count) const {
    std::string text(count, '\0');
    const auto got =
        check(::pread(fd_.get(), text.data(), count, static_cast<off_t>(from)),
              "read");
    text.resize(static_cast<size_t>(got));
    return text;
  }

  void write(size_t from, const std::string& text) const {
    for (size_t done = 0; done < text.size();) {
      done +=
          static_cast<size_t>(check(::pwrite(fd_.get(),
                                             text.data() + done,
                                             text.size() - done,
                                             static_cast<off_t>(from + done)),
                                    "write"));
    }
  }

  /// @throws c10::Error if the file is no trace.
  int64_t origin() const {
    int64_t found = 0;
    const std::string text = read(0, trace_head(0).size());
    TORCH_CHECK(std::sscanf(text.c_str(), kTraceHead, &found) == 1 &&
                    trace_head(found) == text,
                not_a_trace());
    return found;
  }

 private:
  struct stat status() const {
    struct stat found {};
    check(::fstat(fd_.get(), &found), "fstat");
    return found;
  }

  std::string not_a_trace() const {
    return "Expected DDP_TRACE to name a new file or an earlier trace, but "
           "got " +
           path_ + ", which is something else";
  }

  ssize_t check(ssize_t result, const char* call) const {
    TORCH_CHECK(result >= 0,
                "Expected to write the trace ",
                path_,
                ", which DDP_TRACE names, but cannot (",
                call,
                ": ",
                std::generic_category().message(errno),
                ")");
    return result;
  }

  std::string path_;
  FileDescriptor fd_;
};

}  // namespace

TraceFile::TraceFile(std::string path, int64_t run_began)
    : path_(std::move(path)) {
  const LockedFile file(path_, O_RDWR | O_CREAT);
  if (file.size() > 0) {
    file.origin();
    if (file.time() < run_began) {
      file.clear();
    }
  }
}

int64_t TraceFile::begin(int64_t first) const {
  const LockedFile file(path_, O_RDWR | O_CREAT);
  if (file.size() == 0) {
    // Other ranks may have begun earlier.
    file.write(0,
               trace_head((first / kTraceSecond) * kTraceSecond - kTraceHour) +
                   kTraceEnd);
  }
  return file.origin();
}

void TraceFile::append(const std::string& items) const {
  const std::string end = kTraceEnd;
  const LockedFile file(path_, O_RDWR);
  file.origin();
  const size_t at = file.size() - end.size();
  TORCH_CHECK(file.read(at, end.size()) == end,
              "Expected the trace ",
              path_,
              " to be complete, but its end is missing; a rank has ended while "
              "it wrote");
  const bool is_first = at == trace_head(0).size();
  file.write(at, (is_first ? "\n" : ",\n") + items + end);
}

const TraceFile* trace_file() {
  // Never destroyed: a rank may write its events at the end of the process.
  static const TraceFile* const file = []() -> const TraceFile* {
    const char* path = std::getenv("DDP_TRACE");
    if (path == nullptr || *path == '\0') {
      return nullptr;
    }
    try {
      return new TraceFile(path, job_began().value_or(c10::getTime()));
    } catch (const c10::Error& error) {
      TORCH_WARN(error.what_without_backtrace(), "; there will be no trace");
      return nullptr;
    }
  }();
  return file;
}

}  // namespace ddp::detail
