#include "ddp/base/job_files/progress_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "ddp/base/file_descriptor.h"
#include "ddp/base/job_files/job_directory.h"

namespace ddp::detail {
namespace {

// The columns. ddprun uses "beat" only to see that the file has changed.
constexpr std::string_view kLine =
    "pid=0000000000 beat=0000000000 pass=0000000000000000 "
    "collectives=0000000000000000 waits=0 limit=5x                          "
    "                                                               \n";
constexpr size_t kNumber = 16;
constexpr size_t kShortNumber = 10;
constexpr size_t kLimitWidth = 10;
constexpr size_t kTextWidth = 63;

constexpr size_t value_of(std::string_view name) {
  return kLine.find(name) + name.size();
}

constexpr size_t kPid = value_of("pid=");
constexpr size_t kBeat = value_of("beat=");
constexpr size_t kPass = value_of("pass=");
constexpr size_t kCollectives = value_of("collectives=");
constexpr size_t kWaits = value_of("waits=");
constexpr size_t kLimit = value_of("limit=");
constexpr size_t kText = kLimit + kLimitWidth + 1;
static_assert(kText + kTextWidth < kLine.size());

// ddprun accepts no longer limits.
constexpr std::chrono::seconds kLongest{366 * 24 * 3600};

/// Atomic, because ddprun may read the line at any time.
void store(char* place, char value) noexcept {
  __atomic_store_n(place, value, __ATOMIC_RELAXED);
}

}  // namespace

ProgressFile::ProgressFile(const std::string& path) {
  const FileDescriptor file(
      ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      ::pwrite(file.get(), kLine.data(), kLine.size(), 0) !=
          static_cast<ssize_t>(kLine.size())) {
    return;
  }
  void* memory = ::mmap(
      nullptr, kLine.size(), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) {
    return;
  }
  line_ = static_cast<char*>(memory);
  put(kPid, kShortNumber, static_cast<uint64_t>(::getpid()));
}

ProgressFile::~ProgressFile() {
  if (line_ != nullptr) {
    ::munmap(line_, kLine.size());
  }
}

void ProgressFile::beat() noexcept {
  put(kBeat, kShortNumber, beats_.fetch_add(1) + 1);
}

void ProgressFile::note_collective() noexcept {
  put(kCollectives, kNumber, collectives_.fetch_add(1) + 1);
}

void ProgressFile::set_waits(bool waits) noexcept {
  if (line_ != nullptr) {
    store(line_ + kWaits, waits || is_on_device_ ? '1' : '0');
  }
  beat();
}

void ProgressFile::wait_on_device() noexcept {
  if (!is_on_device_.exchange(true)) {
    set_waits(true);
  }
}

void ProgressFile::note_forward() noexcept {
  if (forwards_.fetch_add(1) + 1 == 2) {
    end_first_step();
  }
  beat();
}

void ProgressFile::note_pass() noexcept {
  put(kPass, kNumber, passes_.fetch_add(1) + 1);
  end_first_step();
}

void ProgressFile::end_first_step() noexcept {
  if (is_first_step_.exchange(false)) {
    put_limit();
  }
}

void ProgressFile::set_text(std::string_view text) noexcept {
  put(kText, kTextWidth, text);
}

void ProgressFile::set_limit(std::chrono::seconds limit) noexcept {
  limit_ = std::min(limit, kLongest);
  put_limit();
  beat();
}

void ProgressFile::retire() noexcept {
  is_retired_ = true;
  set_text("has left the job");
  put_limit();
  beat();
}

void ProgressFile::begin() noexcept {
  is_retired_ = false;
  is_first_step_ = true;
  forwards_ = 0;
  put_limit();
  beat();
}

void ProgressFile::put_limit() noexcept {
  const auto limit = is_retired_ ? kLongest : limit_.load();
  if (limit.count() > 0) {
    put(kLimit, kLimitWidth, static_cast<uint64_t>(limit.count()));
  } else {
    put(kLimit, kLimitWidth, is_first_step_ ? "5x" : "");
  }
}

void ProgressFile::put(size_t column, size_t width, uint64_t number) noexcept {
  if (line_ == nullptr) {
    return;
  }
  for (size_t at = column + width; at > column; --at) {
    store(line_ + at - 1, static_cast<char>('0' + number % 10));
    number /= 10;
  }
}

void ProgressFile::put(size_t column,
                       size_t width,
                       std::string_view text) noexcept {
  if (line_ == nullptr) {
    return;
  }
  for (size_t at = 0; at < width; ++at) {
    const char c = at < text.size() ? text[at] : ' ';
    store(line_ + column + at, c >= ' ' && c <= '~' ? c : '?');
  }
}

ProgressFile* progress_file() noexcept {
  // Never destroyed: other threads may report while the program ends.
  static ProgressFile* const file = []() -> ProgressFile* {
    const std::string path = own_job_files().progress;
    auto* opened = path.empty() ? nullptr : new ProgressFile(path);
    return opened != nullptr && opened->is_open() ? opened : nullptr;
  }();
  return file;
}

RankWaitScope::RankWaitScope(std::string_view reason) noexcept {
  if (auto* file = progress_file()) {
    file->set_text(reason);
    file->set_waits(true);
  }
}

RankWaitScope::~RankWaitScope() {
  if (auto* file = progress_file()) {
    file->set_waits(false);
  }
}

}  // namespace ddp::detail
