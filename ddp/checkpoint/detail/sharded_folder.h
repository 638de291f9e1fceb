#pragma once

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "ddp/checkpoint/detail/communicator.h"
#include "ddp/checkpoint/pickle/torch_file.h"

// Checkpoints as folders, into which each rank writes its part of each tensor.
// PyTorch's HuggingFaceStorageReader and HuggingFaceStorageWriter read and
// write the same files. All that is no tensor of a model or an optimizer is in
// one more file, which torch.load reads.
namespace ddp::detail {

/// An entry of a checkpoint whose tensors have names in the files: a model's
/// "fc1.weight" (of other entries than "model": "NAME.fc1.weight"), or an
/// optimizer's "NAME.state.fc1.weight.exp_avg".
struct NamedEntry {
  std::string name;
  const torch::nn::Module* module = nullptr;  ///< null for an optimizer
  const torch::optim::Optimizer* optimizer = nullptr;  ///< of LibTorch
};

/// Returns whether there is a folder of this name.
bool is_folder(const std::string& path);

/// Writes a checkpoint; see `Checkpoint::save_sharded`. Collective.
/// @param value  of the file. DeferredTensors have parts.
/// @throws c10::Error on all ranks; the previous folder is then unchanged.
void write_sharded_folder(const std::string& path,
                          c10::Dict<c10::IValue, c10::IValue> value,
                          const std::vector<NamedEntry>& entries,
                          const Communicator& ranks);

/// Reads a checkpoint as `read_torch_file` does. Of a sharded parameter and its
/// optimizer state only this rank's elements are read; the other elements have
/// no values, and mostly no memory.
TorchFile read_sharded_folder(const std::string& path,
                              const std::vector<NamedEntry>& entries);

}  // namespace ddp::detail
