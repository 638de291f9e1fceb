// Changes that a program makes to its module between steps.
#include <sstream>

#include <torch/serialize.h>
#include <torch/utils.h>

#include "ddp/checkpoint.h"
#include "test/ddp/random_programs/player.h"
#include "test/support/temporary_folder.h"

namespace ddp::test {
namespace {

using torch::Tensor;

void read(torch::nn::Module& module, const torch::nn::Module& source) {
  torch::serialize::OutputArchive written;
  source.save(written);
  std::stringstream file;
  written.save_to(file);
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  module.load(archive);
}

std::vector<Tensor> tensors_of(const torch::nn::Module& module) {
  auto tensors = module.parameters();
  const auto buffers = module.buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  return tensors;
}

void give_dtypes(const torch::nn::Module& module,
                 const std::vector<torch::Dtype>& dtypes) {
  const auto tensors = tensors_of(module);
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].set_data(tensors[i].detach().to(dtypes[i]));
  }
}

std::vector<torch::Dtype> dtypes_of(const torch::nn::Module& module) {
  std::vector<torch::Dtype> dtypes;
  for (const auto& tensor : tensors_of(module)) {
    dtypes.push_back(tensor.scalar_type());
  }
  return dtypes;
}

/// Saves `source` on rank 0 and loads the file on all ranks.
void load_checkpoint(const std::string& name,
                     const Group& group,
                     const RandomNet& source,
                     const std::shared_ptr<torch::nn::Module>& model) {
  static const TemporaryFolder folder;
  const auto path = folder / name;
  Checkpoint(source).process_group(group).save(path);
  Checkpoint(model).process_group(group).load(path);
}

}  // namespace

void Player::load(const Act& act) {
  const auto source = net_in_file(program_, index_);
  give_dtypes(*source, dtypes_of(*learner_.net));
  switch (act.file) {
    case File::module:
      return read(*learner_.net, *source);
    case File::wrapper:
      return read(model(), *source);
    case File::submodule: {
      const auto name = name_of(act.part);
      return read(*learner_.net->named_children()[name],
                  *source->named_children()[name]);
    }
    case File::checkpoint: {
      std::shared_ptr<torch::nn::Module> model = learner_.net.ptr();
      if (act.by_wrapper()) {
        model = wrapper().model;
      }
      return load_checkpoint(std::to_string(act.model), group_, source, model);
    }
  }
}

void Player::replace(const Act& act) {
  if (act.on_all() || act.rank == rank_) {
    for (const auto& parameter : learner_.parameters) {
      parameter.set_data(parameter.detach().clone());
    }
  }
}

void Player::convert() {
  const auto dtypes = dtypes_of(*learner_.net);
  learner_.net->to(torch::kDouble);
  give_dtypes(*learner_.net, dtypes);
}

}  // namespace ddp::test
