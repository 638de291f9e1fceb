// Loads checkpoints with values that are replaced at random into a training:
//   checkpoint_fuzz [COUNT [SEED]]
// Each is refused with a one-line error, or the training works with it. Damaged
// files are torch_file_fuzz's.
#include <limits>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>

#include "ddp/checkpoint.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "test/support/damage.h"
#include "test/support/fuzzer.h"
#include "test/support/temporary_folder.h"

namespace {

using namespace ddp::test;

/// Returns a value that a checkpoint does not have in its place.
c10::IValue other_value(Random& random) {
  const std::vector<c10::IValue> all{c10::IValue(),
                                     int64_t{-1},
                                     int64_t{0},
                                     std::numeric_limits<int64_t>::max(),
                                     std::numeric_limits<double>::quiet_NaN(),
                                     1e30,
                                     true,
                                     "strong_wolfe",
                                     ddp::detail::new_dict(),
                                     ddp::detail::new_list(),
                                     at::ones({}),
                                     at::ones({3, 4}),
                                     at::ones({12}, at::kComplexFloat),
                                     at::ones({15}).expand({2, 15})};
  return any_of(all, random);
}

/// Replaces or removes one value somewhere in a dict or list.
void replace_one(const c10::IValue& value, Random& random) {
  const auto down = [&](const c10::IValue& child) {
    const bool is_container = child.isGenericDict() || child.isList();
    if (is_container && random() % 8 != 0) {
      replace_one(child, random);
      return true;
    }
    return false;
  };
  if (value.isGenericDict() && !value.toGenericDict().empty()) {
    auto dict = value.toGenericDict();
    std::vector<c10::IValue> keys;
    for (const auto& item : dict) {
      keys.push_back(item.key());
    }
    const auto key = any_of(keys, random);
    if (!down(dict.at(key))) {
      if (random() % 4 == 0) {
        static_cast<void>(dict.erase(key));
      } else {
        dict.insert_or_assign(key, other_value(random));
      }
    }
  } else if (value.isList() && !value.toListRef().empty()) {
    auto list = value.toList();
    const auto at = random() % list.size();
    if (!down(list.get(at))) {
      list.set(at, other_value(random));
    }
  }
}

/// A training with the objects that a checkpoint can hold, after two steps.
struct Training {
  Training() {
    checkpoint.add("rmsprop", rmsprop)
        .add("adam", adam)
        .add("sampler", sampler);
    step();
    step();
  }

  void step() {
    rmsprop.zero_grad();
    net->forward(at::ones({2, 4})).pow(2).mean().backward();
    rmsprop.step();
    adam.step();
    sampler.reset();
    sampler.next(1);
  }

  torch::nn::Linear net{4, 3};
  torch::optim::RMSprop rmsprop{
      net->parameters(),
      torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true)};
  torch::optim::Adam adam{net->parameters()};
  ddp::DistributedSampler sampler{
      20, ddp::DistributedSamplerOptions().num_replicas(2).rank(1)};
  ddp::Checkpoint checkpoint{net};
};

/// Loads a checkpoint with other values. The training has to work with all
/// values that it accepts.
void load_other_values(const std::string& path, Random& random) {
  Training training;
  training.checkpoint.save(path);
  const auto value = ddp::detail::read_torch_file(path).value;
  for (size_t changes = 1 + random() % 3; changes > 0; --changes) {
    replace_one(value, random);
  }
  ddp::detail::write_torch_file(path, value);
  training.checkpoint.load(path);
  training.step();
}

}  // namespace

int main(int argc, char** argv) {
  Fuzzer fuzzer(argc, argv, 400);
  Random random(fuzzer.seed());
  const TemporaryFolder folder;
  return fuzzer.run(
      [&](size_t /*number*/) { load_other_values(folder / "x.pt", random); });
}
