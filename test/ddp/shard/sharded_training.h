#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ddp/checkpoint.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/fully_sharded_data_parallel.h"
#include "test/ddp/shard/sharded_net.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"

// Trainings of sharded models, and the values in their checkpoints. The ranks
// are threads.
namespace ddp::test {

using Values = std::map<std::string, torch::Tensor>;

inline void run(int size, const std::function<void(const Group& group)>& body) {
  CHECK(try_host_ranks(size, body) ==
        std::vector<std::string>(static_cast<size_t>(size)));
}

/// A model and an optimizer in a checkpoint.
template <class Wrapper, class Options>
struct Training {
  Training(const Group& to,
           Elementwise kind,
           const Options& options = {},
           const ShardedNet& of = ShardedNet())
      : group(to), net(of), model(net, Options(options).process_group(group)) {
    optimizer = make_elementwise(kind, model->parameters());
    checkpoint = std::make_unique<Checkpoint>(model.ptr());
    checkpoint->process_group(group).add("optimizer", *optimizer);
  }

  void train(int first, int steps) {
    for (int step = first; step < first + steps; ++step) {
      optimizer->zero_grad();
      model->forward(input_of(step, group->getRank()))
          .square()
          .mean()
          .backward();
      optimizer->step();
    }
  }

  Group group;
  ShardedNet net;
  Wrapper model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<Checkpoint> checkpoint;
};

using Plain = Training<DistributedDataParallel<ShardedNet>,
                       DistributedDataParallelOptions>;
using Sharded = Training<FullyShardedDataParallel<ShardedNet>,
                         FullyShardedDataParallelOptions>;

/// Adds the tensors and numbers of a file's value under their paths.
inline void flatten(const std::string& path,
                    const c10::IValue& value,
                    Values& values) {
  if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) {
      const auto key = item.key().isString()
                           ? item.key().toStringRef()
                           : std::to_string(item.key().toInt());
      flatten(path + "/" + key, item.value(), values);
    }
  } else if (value.isList()) {
    int64_t number = 0;
    for (const c10::IValue& item : value.toListRef()) {
      flatten(path + "/" + std::to_string(number++), item, values);
    }
  } else if (value.isTensor()) {
    values[path] = value.toTensor();
  } else if (value.isDouble() || value.isInt() || value.isBool()) {
    values[path] = torch::scalar_tensor(value.toScalar(), torch::kDouble);
  }
}

inline Values values_in(const std::string& path) {
  Values values;
  flatten("", detail::read_torch_file(path).value, values);
  for (auto item = values.begin(); item != values.end();) {
    item = item->first.rfind("/rng/", 0) == 0 ? values.erase(item)
                                              : std::next(item);
  }
  return values;
}

inline void check_equal(const Values& one, const Values& other) {
  REQUIRE(one.size() == other.size());
  for (const auto& [path, tensor] : one) {
    CAPTURE(path);
    const auto& same = other.at(path);
    CHECK(tensor.strides() == same.strides());
    CHECK(torch::equal(tensor, same));
  }
}

/// Trains 3 steps on `ranks` ranks from the file `from`, if any, and saves.
template <class Kind>
void train_file(int ranks,
                Elementwise optimizer,
                const std::string& from,
                const std::string& to) {
  run(ranks, [&](const Group& group) {
    auto training = std::make_unique<Kind>(group, optimizer);
    if (!from.empty()) {
      training->checkpoint->load(from);
    }
    training->train(from.empty() ? 0 : 3, 3);
    training->checkpoint->save(to);
  });
}

}  // namespace ddp::test
