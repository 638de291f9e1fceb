#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/detail/checkpoint_entry.h"
#include "ddp/checkpoint/detail/ranks.h"

namespace ddp::detail {

/// What a file makes of the parts; not in place yet.
struct CheckpointUpdate {
  std::vector<std::function<void()>> apply;  ///< to be called in this order
  std::optional<int64_t> epoch;
  std::optional<int64_t> step;
};

/// What a checkpoint is taken of.
struct CheckpointParts {
  std::vector<std::pair<std::string, std::shared_ptr<CheckpointEntry>>> entries;
  int64_t epoch = 0;
  int64_t step = 0;
  std::optional<size_t> trained;  ///< as of `Checkpoint::trained`

  /// @throws c10::Error for a name that is empty or taken.
  void add(std::string name, std::shared_ptr<CheckpointEntry> entry);
  /// The same, in place of what has that name.
  void set(const std::string& name, std::shared_ptr<CheckpointEntry> entry);

  /// Puts it in place.
  void take(const CheckpointUpdate& update);
};

/// Collective. Returns what makes the value that rank 0 writes; the others'
/// is not to be called.
std::function<c10::IValue()> collect(const CheckpointParts& parts,
                                     const Ranks& ranks);

/// Checks a file's value against the parts; changes nothing.
/// @throws c10::Error that says which entry is wrong, and how.
CheckpointUpdate check(const c10::IValue& file,
                       const CheckpointParts& parts,
                       size_t rank,
                       size_t world_size);

}  // namespace ddp::detail
