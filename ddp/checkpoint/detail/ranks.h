#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/error_text.h"

namespace ddp::detail {

/// The ranks that save and load together; a single rank without a process
/// group. All functions except `rank` and `size` are collective.
class Ranks {
 public:
  /// @param group  null for the job's group, or a single rank without a job.
  explicit Ranks(const c10::intrusive_ptr<c10d::Backend>& group);

  size_t rank() const;
  size_t size() const;

  /// Returns the texts of all ranks, indexed by rank.
  std::vector<std::string> gather(const std::string& mine) const;

  /// Returns the texts of all ranks on rank 0, and an empty list on the other
  /// ranks. For large texts: only rank 0 holds more than one text at a time.
  std::vector<std::string> gather_on_first(const std::string& mine) const;

  /// Runs `work` on this rank. Returns the error of each rank, "" for success.
  template <class Work>
  std::vector<std::string> try_on_all(const Work& work) const {
    std::string mine;
    try {
      work();
    } catch (const std::exception& error) {
      mine = text_of(error);
    }
    return gather(mine);
  }

  /// Runs `work` on this rank. Throws on all ranks if it threw on any rank.
  template <class Work>
  void run_on_all(const Work& work) const {
    const auto error = first_of(try_on_all(work));
    if (!error.empty()) {
      fail(error);
    }
  }

  /// Returns the first error that is not "", with its rank.
  std::string first_of(const std::vector<std::string>& errors) const;

  /// Throws on all ranks. A rank that throws may end its process at once, which
  /// would break the last collective of a slower rank; therefore all ranks meet
  /// in a collective before they throw.
  [[noreturn]] void fail(const std::string& error) const;

 private:
  c10::intrusive_ptr<c10d::Backend> group_;
};

}  // namespace ddp::detail
