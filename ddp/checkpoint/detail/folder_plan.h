#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::detail {

/// Returns the name of a step's checkpoint in its folder: "step-000000120.pt".
std::string checkpoint_name(int64_t step);

/// Returns the step of a checkpoint with this name; std::nullopt for other
/// names. Each step has exactly one name.
std::optional<int64_t> step_of(std::string_view file);

/// Returns the checkpoints among a folder's files, the latest step first.
std::vector<std::string> checkpoints_in(const std::vector<std::string>& files);

/// Files to remove when a checkpoint is saved.
struct SavePlan {
  std::vector<std::string> before;  ///< temporary files of killed saves
  std::vector<std::string> after;   ///< checkpoints not kept after the save
};

/// @param files    names in the folder.
/// @param unsound  names of checkpoints that `load` skipped; not kept.
/// @throws c10::Error if a valid checkpoint has a later step, because `load`
///   would prefer it.
SavePlan plan_save(const std::vector<std::string>& files,
                   const std::set<std::string>& unsound,
                   int64_t step,
                   size_t keep_last);

}  // namespace ddp::detail
