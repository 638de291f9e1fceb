#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/job/error_text.h"

namespace ddp::detail {

/// The ranks that save and load together; one alone without a process group.
/// All functions but `rank` and `size` are collective.
class Ranks {
 public:
  /// @param group  null: the job's, where there is one.
  explicit Ranks(const c10::intrusive_ptr<c10d::Backend>& group);

  size_t rank() const;
  size_t size() const;

  /// The texts of all ranks, by rank.
  std::vector<std::string> gather(const std::string& mine) const;

  /// The same on rank 0, nothing on the others. For large texts: no rank but
  /// rank 0 holds more than one at a time.
  std::vector<std::string> gather_on_first(const std::string& mine) const;

  /// Runs `work` here; what it threw on each rank, "" for nothing.
  template <class Work>
  std::vector<std::string> try_together(const Work& work) const {
    std::string mine;
    try {
      work();
    } catch (const std::exception& error) {
      mine = text_of(error);
    }
    return gather(mine);
  }

  /// The same, but when it throws on any rank, throws on all of them.
  template <class Work>
  void together(const Work& work) const {
    const auto error = first_of(try_together(work));
    if (!error.empty()) {
      fail(error);
    }
  }

  /// The first error that is not "", and its rank.
  std::string first_of(const std::vector<std::string>& errors) const;

  /// Throws on all ranks. A rank that throws may end its process at once, and
  /// would break the last exchange of a slower one: so all finish it first.
  [[noreturn]] void fail(const std::string& error) const;

 private:
  c10::intrusive_ptr<c10d::Backend> group_;
};

}  // namespace ddp::detail
