#pragma once

#include <string>

#include "ddp/checkpoint/detail/checkpoint_file.h"
#include "ddp/checkpoint/detail/ranks.h"
#include "ddp/checkpoint/pickle/torch_file.h"

namespace ddp::detail {

/// Reads the file on every rank. Collective. Returns the reason if it is not
/// the same valid file on all ranks, otherwise "".
std::string read_together(const std::string& path,
                          const Ranks& ranks,
                          TorchFile& file);

/// Applies the file on all ranks. Collective.
/// @throws c10::Error on all ranks, without any change, if the file does not
///   fit on one of them.
void apply_on_all_ranks(const std::string& path,
                        const TorchFile& file,
                        CheckpointParts& parts,
                        const Ranks& ranks);

}  // namespace ddp::detail
