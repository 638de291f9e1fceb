#pragma once

#include <cstdint>
#include <string>

namespace ddp::detail {

/// The file that the variable DDP_TRACE names: a timeline of all ranks in
/// Chrome's trace event format, to which each rank appends its own events.
/// Ranks with the same file share its time 0. Ranks of hosts without a common
/// folder have a file each.
class TraceFile {
 public:
  /// Creates an empty file, or empties the trace of an earlier run.
  /// @param run_began  nanoseconds since the epoch; a trace that was last
  ///   written before is of an earlier run.
  /// @throws c10::Error if `path` is something else, which stays as it is, or
  ///   if it cannot be written.
  TraceFile(std::string path, int64_t run_began);

  const std::string& path() const { return path_; }

  /// Begins the trace unless another rank has begun it. Returns its time 0, in
  /// nanoseconds, which lies before the first events of all ranks.
  /// @param first  begin of the first event of this rank.
  /// @throws c10::Error if the file cannot be written.
  int64_t begin(int64_t first) const;

  /// Appends JSON objects, separated by commas. The file is valid JSON before
  /// and after.
  /// @throws c10::Error if the file cannot be written.
  void append(const std::string& items) const;

 private:
  std::string path_;
};

/// Returns the file of DDP_TRACE, or null without one.
const TraceFile* trace_file();

}  // namespace ddp::detail
