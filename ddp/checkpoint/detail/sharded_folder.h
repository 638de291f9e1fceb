#pragma once

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/checkpoint.h"
#include "ddp/checkpoint/detail/communicator.h"
#include "ddp/checkpoint/pickle/torch_file.h"

// Checkpoints as folders, into which each rank writes its part of each tensor.
// PyTorch's HuggingFaceStorageReader and HuggingFaceStorageWriter read and
// write the same files. All that is no tensor of a model or an optimizer is in
// one more file, which torch.load reads.
namespace ddp::detail {

/// Writes a checkpoint; see `Checkpoint::save_sharded`. Collective.
/// @param value  of the file. DeferredTensors have parts.
/// @throws c10::Error on all ranks; the previous folder is then unchanged.
void write_sharded_folder(const std::string& path,
                          c10::Dict<c10::IValue, c10::IValue> value,
                          const std::vector<CheckpointEntry>& entries,
                          const Communicator& ranks);

/// @throws c10::Error if an optimizer lacks the model of a parameter. Without
///   the model a folder cannot be written or read: it names the states.
void check_models(const std::vector<CheckpointEntry>& entries);

/// Reads a checkpoint as `read_torch_file` does. Of a sharded parameter and its
/// optimizer state only this rank's elements are read; the other elements have
/// no values, and mostly no memory.
TorchFile read_sharded_folder(const std::string& path,
                              const std::vector<CheckpointEntry>& entries);

}  // namespace ddp::detail
