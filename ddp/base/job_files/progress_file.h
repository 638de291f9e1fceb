#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::detail {

/// The file of progress_text.h as this process writes it: a line of fixed
/// columns in mapped memory, so that a report is a few stores. Any thread; two
/// at once may leave a number that is neither's, until the next report.
class ProgressFile {
 public:
  /// Opens and maps what is at `path`. Where that cannot be, calls do nothing.
  explicit ProgressFile(const std::string& path);
  ~ProgressFile();
  ProgressFile(const ProgressFile&) = delete;
  ProgressFile& operator=(const ProgressFile&) = delete;

  bool is_open() const { return line_ != nullptr; }

  /// Makes any change: this is progress.
  void beat() noexcept;
  /// A collective has begun.
  void note_collective() noexcept;
  /// This thread begins, or ends, to wait for other ranks.
  void set_waits(bool waits) noexcept;
  /// From now on this rank may wait for others whenever its device does: the
  /// host does not see for what.
  void wait_on_device() noexcept;
  /// A step begins. From the second one on --hang-timeout is the limit.
  void note_forward() noexcept;
  /// A backward pass has ended, and so has the first step.
  void note_pass() noexcept;
  /// For people.
  void set_text(std::string_view text) noexcept;
  /// Until the next call; 0: what --hang-timeout says.
  void set_limit(std::chrono::seconds limit) noexcept;
  std::chrono::seconds limit() const noexcept { return limit_.load(); }
  /// The job has been left, so that nothing more is to be expected; or another
  /// one begins.
  void retire() noexcept;
  void begin() noexcept;

 private:
  void put(size_t column, size_t width, uint64_t number) noexcept;
  void put(size_t column, size_t width, std::string_view text) noexcept;
  void put_limit() noexcept;

  char* line_ = nullptr;
  std::atomic<bool> is_on_device_{false};
  std::atomic<bool> is_retired_{false};
  std::atomic<uint64_t> beats_{0};
  std::atomic<uint64_t> collectives_{0};
  std::atomic<uint64_t> forwards_{0};
  std::atomic<uint64_t> passes_{0};
  std::atomic<std::chrono::seconds> limit_{std::chrono::seconds(0)};
};

/// The one that DDPRUN_PROGRESS_FILE names; null where there is none. Opened by
/// the first call, which is the first report.
ProgressFile* progress_file() noexcept;

/// Scope: this thread waits for other ranks.
class WaitsForRanks {
 public:
  /// @param for_what must outlive this
  explicit WaitsForRanks(std::string_view for_what) noexcept;
  ~WaitsForRanks();
  WaitsForRanks(const WaitsForRanks&) = delete;
  WaitsForRanks& operator=(const WaitsForRanks&) = delete;
};

}  // namespace ddp::detail
