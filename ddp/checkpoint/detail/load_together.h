#pragma once

#include <string>

#include "ddp/checkpoint/detail/checkpoint_file.h"
#include "ddp/checkpoint/detail/ranks.h"
#include "ddp/checkpoint/pickle/torch_file.h"

namespace ddp::detail {

/// Collective. Every rank reads the file. Returns why it is not the same sound
/// one on all ranks, or "".
std::string read_together(const std::string& path,
                          const Ranks& ranks,
                          TorchFile& file);

/// Collective. Puts what was read in place on all ranks.
/// @throws c10::Error on all ranks, and changes nothing, when it does not fit
///   on one of them.
void take_together(const std::string& path,
                   const TorchFile& file,
                   CheckpointParts& parts,
                   const Ranks& ranks);

}  // namespace ddp::detail
