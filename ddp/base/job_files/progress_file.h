#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::detail {

/// Writes the file progress_RANK of job_directory.h: a line with fixed columns
/// in mapped memory, so that a report is a few stores. Thread-safe, except that
/// two simultaneous reports may leave a mixed number until the next report.
class ProgressFile {
 public:
  /// Opens and maps the file at `path`. On failure, all calls do nothing.
  explicit ProgressFile(const std::string& path);
  ~ProgressFile();
  ProgressFile(const ProgressFile&) = delete;
  ProgressFile& operator=(const ProgressFile&) = delete;

  bool is_open() const { return line_ != nullptr; }

  /// Changes the file, which reports progress.
  void beat() noexcept;
  /// Counts a collective that has begun.
  void note_collective() noexcept;
  /// Records whether this thread waits for other ranks.
  void set_waits(bool waits) noexcept;
  /// From now on `waits` stays set, because device work may wait for other
  /// ranks at any time without the host seeing it.
  void wait_on_device() noexcept;
  /// Counts a step. The second call since `begin` ends the first step; the
  /// limit is then --hang-timeout.
  void note_forward() noexcept;
  /// Counts a completed backward pass, which also ends the first step.
  void note_pass() noexcept;
  /// Sets the text for the report of a hang.
  void set_text(std::string_view text) noexcept;
  /// Sets the limit until the next call; 0: --hang-timeout.
  void set_limit(std::chrono::seconds limit) noexcept;
  std::chrono::seconds limit() const noexcept { return limit_.load(); }
  /// `retire` removes the limit after the job was left; `begin` restores it for
  /// the next job, with the time for a first step.
  void retire() noexcept;
  void begin() noexcept;

 private:
  void put(size_t column, size_t width, uint64_t number) noexcept;
  void put(size_t column, size_t width, std::string_view text) noexcept;
  void put_limit() noexcept;
  void end_first_step() noexcept;

  char* line_ = nullptr;
  std::atomic<bool> is_on_device_{false};
  std::atomic<bool> is_retired_{false};
  std::atomic<uint64_t> beats_{0};
  std::atomic<uint64_t> collectives_{0};
  std::atomic<bool> is_first_step_{true};
  std::atomic<uint64_t> forwards_{0};  // since begin
  std::atomic<uint64_t> passes_{0};
  std::atomic<std::chrono::seconds> limit_{std::chrono::seconds(0)};
};

/// Returns the file of this process's rank in DDPRUN_JOB_DIR, or null without
/// one. The first call opens the file, which is the first report.
ProgressFile* progress_file() noexcept;

/// Records, in its scope, that this thread waits for other ranks.
class RankWaitScope {
 public:
  /// @param reason  must outlive the scope.
  explicit RankWaitScope(std::string_view reason) noexcept;
  ~RankWaitScope();
  RankWaitScope(const RankWaitScope&) = delete;
  RankWaitScope& operator=(const RankWaitScope&) = delete;
};

}  // namespace ddp::detail
