#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/error_text.h"
#include "ddp/job/peers.h"
#include "ddp/job/text_collectives.h"

namespace ddp::detail {

/// The ranks that save and load together; a single rank without a process
/// group. All functions except `rank` and `size` are collective.
class Communicator {
 public:
  /// @param group  null for the job's group, or a single rank without a job.
  explicit Communicator(const c10::intrusive_ptr<c10d::Backend>& group)
      : group_(peers(group)) {}

  size_t rank() const {
    return group_ ? static_cast<size_t>(group_->getRank()) : 0;
  }
  size_t size() const {
    return group_ ? static_cast<size_t>(group_->getSize()) : 1;
  }

  /// Returns the texts of all ranks, indexed by rank.
  std::vector<std::string> gather(const std::string& mine) const {
    return group_ ? all_gather_text(
                        *group_, device_for(*group_, c10::kCPU), mine, kPurpose)
                  : std::vector{mine};
  }

  /// Returns the texts of all ranks on rank 0; see `gather_text`.
  std::vector<std::string> gather_on_first(const std::string& mine) const {
    return group_ ? gather_text(
                        *group_, device_for(*group_, c10::kCPU), mine, kPurpose)
                  : std::vector{mine};
  }

  /// Returns the first error of all ranks, with its rank; "" if all are "".
  /// @param mine  the error of this rank, "" for none.
  std::string first_error(const std::string& mine) const {
    std::vector<std::string> errors;
    try {
      errors = gather(mine);
    } catch (const std::exception&) {
      // This rank's error may have closed the group; it is the cause then.
      if (mine.empty()) {
        throw;
      }
      return mine;
    }
    for (size_t rank = 0; rank < errors.size(); ++rank) {
      if (!errors[rank].empty()) {
        return size() > 1 ? "rank " + std::to_string(rank) + ": " + errors[rank]
                          : errors[rank];
      }
    }
    return "";
  }

  /// Throws on all ranks. A rank that throws may end its process at once, which
  /// would break the last collective of a slower rank; therefore all ranks meet
  /// in a collective before they throw.
  [[noreturn]] void fail(const std::string& error) const {
    try {
      gather("");
    } catch (const std::exception&) {
      // The slower rank has ended; report this rank's error.
    }
    TORCH_CHECK(false, error);
  }

  /// Runs `work` on this rank. Returns the first error of all ranks.
  template <class Work>
  std::string try_on_all(const Work& work) const {
    std::string mine;
    try {
      work();
    } catch (const std::exception& error) {
      mine = text_of(error);
    }
    return first_error(mine);
  }

  /// Runs `work` on this rank. Throws on all ranks if it threw on any rank.
  template <class Work>
  void run_on_all(const Work& work) const {
    const auto error = try_on_all(work);
    if (!error.empty()) {
      fail(error);
    }
  }

 private:
  static constexpr const char* kPurpose = "a checkpoint";

  c10::intrusive_ptr<c10d::Backend> group_;
};

}  // namespace ddp::detail
