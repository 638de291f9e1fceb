#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

namespace launcher {

/// Output that could not be written: the disk is full, a file may not grow, or
/// it is /dev/full. The job goes on, and so do the attempts to write, since
/// room may come back; but a job that lost output is no success.
class DroppedOutput {
 public:
  using Teller = std::function<void(const std::string& line)>;

  /// From now on `tell` gets one line about the first loss.
  void tell_by(Teller tell) { tell_ = std::move(tell); }

  /// @param place what was written to: "stdout", the path of a log
  /// @param bytes how many were lost; 0 when that is not known
  /// @param error errno of the attempt
  void add(const std::string& place, size_t bytes, int error);

  bool empty() const { return bytes_.empty(); }

  /// One line for the end; empty when nothing was lost.
  std::string summary() const;

 private:
  Teller tell_;
  std::map<std::string, size_t> bytes_;
};

}  // namespace launcher
