#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace ddp::detail {

/// Waits for `work` (on CUDA: makes the current stream wait). A failure becomes
/// one c10::Error that names this rank, `what` was done and the cause.
void wait(const c10::intrusive_ptr<c10d::Work>& work,
          const c10d::Backend& group,
          const std::string& what);

}  // namespace ddp::detail
