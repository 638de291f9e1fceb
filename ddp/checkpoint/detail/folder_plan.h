#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace ddp::detail {

/// The name of a step's checkpoint in its folder: "step-000000120.pt".
std::string checkpoint_name(int64_t step);

/// Those of a folder's files that are checkpoints, the latest step first.
std::vector<std::string> checkpoints_in(const std::vector<std::string>& files);

/// What to remove when a checkpoint is saved.
struct SavePlan {
  std::vector<std::string> before;  ///< what saves that were killed left behind
  std::vector<std::string> after;   ///< what is not kept once it is saved
};

/// @param files  in the folder.
/// @param unsound  checkpoints that could not be read; they are not kept.
/// @throws c10::Error when a sound one has a later step: it would be the one
///   that is loaded.
SavePlan plan_save(const std::vector<std::string>& files,
                   const std::set<std::string>& unsound,
                   int64_t step,
                   size_t keep_last);

}  // namespace ddp::detail
