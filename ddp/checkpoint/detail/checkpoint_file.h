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

/// A validated file, ready to be applied to the parts.
struct CheckpointUpdate {
  std::vector<std::function<void()>> apply;  ///< to be called in this order
  std::optional<int64_t> epoch;
  std::optional<int64_t> step;
};

/// The entries and counters of a checkpoint.
struct CheckpointParts {
  std::vector<std::pair<std::string, std::shared_ptr<CheckpointEntry>>> entries;
  int64_t epoch = 0;
  int64_t step = 0;
  std::optional<size_t> trained;  ///< see `Checkpoint::trained`

  /// @throws c10::Error for a name that is empty, reserved or used.
  void add(std::string name, std::shared_ptr<CheckpointEntry> entry);
  /// Adds an entry, or replaces the entry of this name.
  void set(const std::string& name, std::shared_ptr<CheckpointEntry> entry);

  /// Applies an update that `check` returned.
  void apply(const CheckpointUpdate& update);
};

/// Gathers all entries. Collective. Returns a function that builds the value to
/// write; only rank 0 may call it.
std::function<c10::IValue()> collect(const CheckpointParts& parts,
                                     const Ranks& ranks);

/// Validates the content of a file against the parts; changes nothing.
/// @throws c10::Error that names the wrong entry and the reason.
CheckpointUpdate check(const c10::IValue& file,
                       const CheckpointParts& parts,
                       size_t rank,
                       size_t world_size);

}  // namespace ddp::detail
