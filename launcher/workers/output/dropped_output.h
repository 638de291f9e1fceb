#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

namespace launcher {

/// Counts output that could not be written, for example because the disk is
/// full, a file size limit is reached or the file is /dev/full. The job
/// continues and later writes are tried, because space may become available. A
/// job that lost output does not count as successful.
class DroppedOutput {
 public:
  using Warn = std::function<void(const std::string& line)>;

  /// Registers a callback that receives one line about the first loss.
  void on_first_loss(Warn warn) { warn_ = std::move(warn); }

  /// Records lost output and, at the first loss, calls the registered callback.
  ///
  /// @param place destination of the output: "stdout", or the path of a log
  /// @param bytes number of lost bytes; 0 if unknown
  /// @param error errno of the failed write; 0: ddprun did not wait for the
  ///   write, at its end
  void add(const std::string& place, size_t bytes, int error);

  /// Removes the record of a file that was written anew.
  void forget(const std::string& place) { lost_.erase(place); }

  /// Returns the errno of the last failed write; 0: there is none.
  int error_of(const std::string& place) const;

  bool empty() const { return lost_.empty(); }

  /// Returns one line for the final report; empty if no output was lost.
  std::string summary() const;

 private:
  struct Loss {
    size_t bytes = 0;
    int error = 0;
  };

  Warn warn_;
  std::map<std::string, Loss> lost_;
};

}  // namespace launcher
