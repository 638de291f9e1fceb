#include "ddp/checkpoint.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/data.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/serialize.h>

#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/distributed_data_parallel.h"
#include "test/support/catch.h"
#include "test/support/local_ranks.h"
#include "test/support/temporary_folder.h"

namespace checkpoint_test {

using Catch::Contains;
using ddp::Checkpoint;
using ddp::test::Group;
using ddp::test::read_file;
using ddp::test::TemporaryFolder;
using ddp::test::write_file;
using torch::optim::Optimizer;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("fc1", fc1);
    register_module("bn", bn);
    register_module("fc2", fc2);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto hidden = torch::relu(bn(fc1(x)));
    return fc2(torch::dropout(hidden, /*p=*/0.3, is_training()));
  }
  torch::nn::Linear fc1{4, 8};
  torch::nn::BatchNorm1d bn{8};
  torch::nn::Linear fc2{8, 2};
};
TORCH_MODULE(Net);

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(Net&)>;

template <class Type, class Options>
MakeOptimizer make(const Options& options) {
  return [options](Net& net) {
    return std::make_unique<Type>(net->parameters(), options);
  };
}

/// All optimizers that a checkpoint supports, with all of their state in use.
const std::vector<MakeOptimizer>& optimizers() {
  using namespace torch::optim;
  static const std::vector<MakeOptimizer> all{
      make<SGD>(SGDOptions(0.1)),
      make<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true)),
      make<Adam>(AdamOptions(0.01)),
      make<Adam>(AdamOptions(0.01).amsgrad(true).betas({0.8, 0.9})),
      make<AdamW>(AdamWOptions(0.01).amsgrad(true)),
      make<RMSprop>(RMSpropOptions(0.01)),
      make<RMSprop>(RMSpropOptions(0.01).momentum(0.9).centered(true)),
      make<Adagrad>(AdagradOptions(0.1).lr_decay(0.01))};
  return all;
}

MakeOptimizer sgd() {
  return make<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// A training with everything that a checkpoint keeps.
struct Training {
  explicit Training(const MakeOptimizer& make_optimizer = sgd())
      : optimizer(make_optimizer(net)), checkpoint(net) {
    checkpoint.add("optimizer", *optimizer).add("sampler", sampler);
  }

  void run(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      const auto batch = torch::randn({16, 4});
      optimizer->step([&] {
        optimizer->zero_grad();
        auto loss = net->forward(batch).pow(2).mean();
        loss.backward();
        return loss;
      });
      sampler.next(2);
    }
    checkpoint.step(checkpoint.step() + steps);
  }

  /// Returns all parameters and buffers in one vector.
  torch::Tensor state() const {
    std::vector<torch::Tensor> flat;
    for (const auto& item : ddp::state_dict(*net)) {
      flat.push_back(item.value().to(torch::kDouble).flatten());
    }
    return torch::cat(flat);
  }

  Net net;
  std::unique_ptr<Optimizer> optimizer;
  ddp::DistributedSampler sampler{
      100, ddp::DistributedSamplerOptions().num_replicas(2).rank(1)};
  Checkpoint checkpoint;
};

std::string load_error(Training& training, const std::string& path) {
  try {
    training.checkpoint.load(path);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

double learning_rate(const Training& training) {
  return training.optimizer->param_groups()[0].options().get_lr();
}

TEST_CASE("A resumed training equals the undisturbed one bit for bit",
          "[checkpoint]") {
  const TemporaryFolder folder;
  const size_t kind = GENERATE(range(size_t{0}, size_t{8}));
  CAPTURE(kind);
  REQUIRE(optimizers().size() == 8);
  torch::manual_seed(1);
  Training first(optimizers()[kind]);
  first.sampler.set_epoch(4);
  first.run(3);
  first.optimizer->param_groups()[0].options().set_lr(0.005);
  first.checkpoint.epoch(4).save(folder / "a.pt");
  first.run(3);

  torch::manual_seed(99);
  Training second(optimizers()[kind]);
  second.run(1);
  second.checkpoint.load(folder / "a.pt");
  CHECK(second.checkpoint.epoch() == 4);
  CHECK(second.checkpoint.step() == 3);
  CHECK(second.sampler.epoch() == 4);
  CHECK(learning_rate(second) == 0.005);
  second.sampler.reset();
  CHECK(second.sampler.position() == 6);
  second.run(3);
  CHECK(second.sampler.position() == 12);
  REQUIRE(first.state().isfinite().all().item<bool>());
  CHECK(torch::equal(first.state(), second.state()));
}

TEST_CASE("A checkpoint of an optimizer that has not stepped yet",
          "[checkpoint]") {
  const TemporaryFolder folder;
  for (const auto& make_optimizer : optimizers()) {
    Training first(make_optimizer);
    first.checkpoint.save(folder / "a.pt");
    Training second(make_optimizer);
    second.run(2);
    second.checkpoint.load(folder / "a.pt");
    first.checkpoint.load(folder / "a.pt");
    first.run(2);
    first.checkpoint.load(folder / "a.pt");
    CHECK(torch::equal(first.state(), second.state()));
  }
}

TEST_CASE("A checkpoint of another optimizer or model changes nothing",
          "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  const auto error_between = [&](const MakeOptimizer& saved,
                                 const MakeOptimizer& mine) {
    Training first(saved);
    first.run(1);
    first.checkpoint.epoch(3).save(path);
    Training second(mine);
    second.run(1);
    const auto before = second.state();
    const auto lr = learning_rate(second);
    const auto error = load_error(second, path);
    CHECK(torch::equal(second.state(), before));
    CHECK(learning_rate(second) == lr);
    CHECK(second.checkpoint.epoch() == 0);
    CHECK(second.sampler.position() == 2);
    return error;
  };
  const auto start = "Cannot load " + path + ": ";
  using namespace torch::optim;
  CHECK(
      error_between(optimizers()[1], optimizers()[2]) ==
      start +
          R"(in "optimizer": it has no optimizer["param_groups"][0]["betas"])");
  CHECK(error_between(optimizers()[2], optimizers()[4]) ==
        start + R"(in "optimizer": its optimizer is another one than AdamW)");
  CHECK(
      error_between(optimizers()[5], optimizers()[0]) ==
      start +
          R"(in "optimizer": it has no optimizer["param_groups"][0]["dampening"])");
  CHECK(error_between(sgd(),
                      [](Net& net) {
                        return std::make_unique<SGD>(
                            std::vector<torch::Tensor>{net->fc1->weight},
                            SGDOptions(0.1));
                      }) ==
        start + R"(in "optimizer": its optimizer has a group of 6 )"
                "parameters, but this one's has 1");
  CHECK(error_between(sgd(),
                      [](Net& net) {
                        return std::make_unique<SGD>(
                            std::vector<OptimizerParamGroup>{
                                {{net->fc1->weight}}, {{net->fc1->bias}}},
                            SGDOptions(0.1));
                      }) ==
        start + R"(in "optimizer": its optimizer has 1 parameter )"
                "groups, but this one has 2");
  CHECK(error_between(sgd(),
                      [](Net& net) {
                        auto params = net->parameters();
                        std::swap(params[0], params[1]);
                        return std::make_unique<SGD>(params, SGDOptions(0.1));
                      }) ==
        start + R"(in "optimizer": its optimizer state "momentum_buffer" )"
                "has shape "
                "[8, 4], but the parameter has [8]");
}

/// Two models with an optimizer each, like a generator and its critic.
struct Pair {
  Pair() {
    checkpoint.add("generator", generator)
        .add("generator_optimizer", generator_optimizer)
        .add("critic", critic)
        .add("critic_optimizer", critic_optimizer)
        .add("critic_scaler", scaler);
  }

  void run() {
    for (int step = 0; step < 3; ++step) {
      generator_optimizer.zero_grad();
      critic_optimizer.zero_grad();
      scaler
          .scale(critic->forward(generator->forward(torch::randn({16, 4})))
                     .pow(2)
                     .mean())
          .backward();
      generator_optimizer.step();
      scaler.step(critic_optimizer);
      scaler.update();
    }
  }

  torch::Tensor state() const {
    return torch::cat({generator->weight.flatten(),
                       generator->bias,
                       critic->weight.flatten(),
                       critic->bias})
        .detach()
        .clone();
  }

  torch::nn::Linear generator{4, 3};
  torch::nn::Linear critic{3, 1};
  torch::optim::Adam generator_optimizer{generator->parameters(),
                                         torch::optim::AdamOptions(0.01)};
  torch::optim::SGD critic_optimizer{
      critic->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  ddp::GradScaler scaler{ddp::GradScalerOptions().init_scale(8)};
  Checkpoint checkpoint;
};

TEST_CASE("Several models and optimizers lie in one checkpoint",
          "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  torch::manual_seed(1);
  Pair first;
  first.run();
  first.scaler.update(2.0);
  first.checkpoint.step(3).save(path);
  first.run();

  torch::manual_seed(9);
  Pair second;
  second.run();
  second.checkpoint.load(path);
  CHECK(second.checkpoint.step() == 3);
  CHECK(second.scaler.get_scale() == 2);
  second.run();
  CHECK(torch::equal(first.state(), second.state()));

  // Each entry can also be loaded alone.
  const auto file = ddp::detail::read_torch_file(path).value.toGenericDict();
  CHECK(file.at("critic").toGenericDict().contains("weight"));
  torch::nn::Linear critic(3, 1);
  Checkpoint().add("critic", critic).load(path);
  first.checkpoint.load(path);
  CHECK(torch::equal(critic->weight, first.critic->weight));
}

TEST_CASE("An error names the entry", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  Pair saved;
  saved.run();
  saved.checkpoint.save(path);
  const auto refuses = [&](Checkpoint& checkpoint, const std::string& reason) {
    CHECK_THROWS_WITH(checkpoint.load(path),
                      Contains("Cannot load " + path + ": " + reason));
  };
  torch::nn::Linear other(3, 2);
  torch::optim::Adam adam(other->parameters());
  Pair mine;
  mine.run();
  const auto before = mine.state();
  Checkpoint wrong;
  wrong.add("generator", mine.generator).add("critic", other);
  refuses(wrong, R"(in "critic": it does not fit the module: "weight": )");
  Checkpoint another;
  another.add("generator", mine.generator).add("critic_optimizer", adam);
  refuses(another, R"(in "critic_optimizer": it has no optimizer[)");
  Checkpoint missing;
  missing.add("generator", mine.generator).add("judge", mine.critic);
  refuses(missing, R"(it has no checkpoint["judge"])");
  CHECK(torch::equal(mine.state(), before));

  mine.critic->register_buffer("bad", torch::eye(2).to_sparse());
  CHECK_THROWS_WITH(mine.checkpoint.save(path),
                    Contains(R"(["critic"]["bad"])"));
}

TEST_CASE("A name belongs to one entry", "[checkpoint]") {
  Pair pair;
  for (const auto* name :
       {"", "critic", "epoch", "step", "rng", "format_version", "save_id"}) {
    CHECK_THROWS_WITH(pair.checkpoint.add(name, pair.critic),
                      Contains("Expected a name of its own") &&
                          Contains("but got \"" + std::string(name) + "\""));
  }
  CHECK_THROWS_WITH(Checkpoint(pair.critic).add("model", pair.generator),
                    Contains("but got \"model\""));
  CHECK_THROWS_WITH(
      pair.checkpoint.add("none", std::shared_ptr<torch::nn::Module>()),
      Contains("Expected a module"));
}

TEST_CASE("LBFGS in a checkpoint is an error", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  Training sgd_training;
  sgd_training.checkpoint.save(path);
  const auto before = read_file(path);
  Training lbfgs(make<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1)));
  const auto error = std::string(
      R"(: in "optimizer": expected SGD, Adam, AdamW, RMSprop, Adagrad or an )"
      "optimizer that is ddp::Stateful to keep in a checkpoint, but got LBFGS; "
      "leave it out of the Checkpoint");
  CHECK_THROWS_WITH(lbfgs.checkpoint.save(path),
                    Contains("Cannot save " + path + error));
  CHECK(read_file(path) == before);
  CHECK(load_error(lbfgs, path) == "Cannot load " + path + error);

  // A file of Python, or of an earlier version.
  const auto file = ddp::detail::read_torch_file(path).value.toGenericDict();
  file.at("optimizer")
      .toGenericDict()
      .at("param_groups")
      .toListRef()[0]
      .toGenericDict()
      .insert("history_size", 100);
  ddp::detail::write_torch_file(path, file);
  CHECK(load_error(sgd_training, path) ==
        "Cannot load " + path +
            R"(: in "optimizer": its optimizer is LBFGS, whose state is not )"
            "loaded; leave the optimizer out of the Checkpoint");
}

TEST_CASE("A file of a newer format version is refused", "[checkpoint]") {
  const TemporaryFolder folder;
  Training training;
  auto file = ddp::detail::new_dict().toGenericDict();
  file.insert("model", ddp::detail::to_value(ddp::state_dict(*training.net)));
  file.insert("format_version", int64_t{3});
  ddp::detail::write_torch_file(folder / "third.pt", file);
  CHECK_THAT(load_error(training, folder / "third.pt"),
             Contains("a newer version of this library"));
}

TEST_CASE("Parameter groups keep their own options", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto grouped = [](Net& net) {
    using namespace torch::optim;
    return std::make_unique<SGD>(
        std::vector<OptimizerParamGroup>{
            {{net->fc1->weight, net->fc1->bias},
             std::make_unique<SGDOptions>(SGDOptions(0.5).momentum(0.9))},
            {{net->fc2->weight, net->fc2->bias}}},
        SGDOptions(0.1));
  };
  Training first(grouped);
  first.run(2);
  first.optimizer->param_groups()[1].options().set_lr(0.25);
  first.checkpoint.save(folder / "a.pt");
  Training second(grouped);
  second.checkpoint.load(folder / "a.pt");
  const auto& groups = second.optimizer->param_groups();
  CHECK(groups[0].options().get_lr() == 0.5);
  CHECK(groups[1].options().get_lr() == 0.25);
  CHECK(second.optimizer->state().size() == 2);  // only the group with momentum
}

/// A dataset: example i is i.
struct Numbers : torch::data::datasets::Dataset<Numbers, int64_t> {
  int64_t get(size_t index) override { return static_cast<int64_t>(index); }
  torch::optional<size_t> size() const override { return 97; }
};

TEST_CASE("A resumed epoch has each example once, with worker threads",
          "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  const size_t workers = GENERATE(0, 2);
  std::mutex mutex;
  std::multiset<int64_t> seen;
  // The loop of docs/checkpoints.md, left in the step `last`; the ranks of the
  // second part have fewer steps.
  const auto run = [&](const Group& group, int64_t last) {
    ddp::DistributedSampler sampler(97,
                                    ddp::DistributedSamplerOptions()
                                        .num_replicas(group->getSize())
                                        .rank(group->getRank())
                                        .padding(false));
    Checkpoint checkpoint;
    checkpoint.process_group(group).add("sampler", sampler);
    if (std::filesystem::exists(path)) {
      checkpoint.load(path);
    }
    const auto loader = torch::data::make_data_loader(
        Numbers(),
        sampler,
        torch::data::DataLoaderOptions().batch_size(4).workers(workers));
    for (const auto& batch : *loader) {
      {
        const std::lock_guard<std::mutex> lock(mutex);
        seen.insert(batch.begin(), batch.end());
      }
      checkpoint.step(checkpoint.step() + 1);
      if (checkpoint.step() == last) {
        checkpoint.save(path);
        return;
      }
    }
  };
  ddp::test::run_ranks(2, [&](const Group& group) { run(group, 3); });
  ddp::test::run_ranks(3, [&](const Group& group) { run(group, 5); });
  ddp::test::run_ranks(2, [&](const Group& group) { run(group, 1000); });
  CHECK(seen.size() == 97);
  CHECK(std::set<int64_t>(seen.begin(), seen.end()).size() == 97);
}

TEST_CASE("A wrapped model has the same checkpoint", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  ddp::test::run_ranks(2, [&](const Group& group) {
    Net net;
    ddp::DistributedDataParallel model(
        net, ddp::DistributedDataParallelOptions().process_group(group));
    Checkpoint(model).process_group(group).save(path);
    const auto before = net->fc1->weight.detach().clone();
    {
      torch::NoGradGuard no_grad;
      net->fc1->weight.zero_();
    }
    Checkpoint(net).process_group(group).load(path);
    TORCH_CHECK(torch::equal(net->fc1->weight, before));
  });
  const auto file = ddp::detail::read_torch_file(path).value.toGenericDict();
  CHECK(file.at("model").toGenericDict().contains("fc1.weight"));
}

TEST_CASE("torch::save sees through the wrapper", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  ddp::test::run_ranks(2, [&](const Group& group) {
    Net net;
    ddp::DistributedDataParallel model(
        net, ddp::DistributedDataParallelOptions().process_group(group));
    if (group->getRank() == 0) {
      torch::save(model, path);
      Net plain;
      torch::load(plain, path);
      TORCH_CHECK(torch::equal(plain->fc1->weight, net->fc1->weight));
      {
        torch::NoGradGuard no_grad;
        plain->fc1->weight.fill_(5);
      }
      torch::save(plain, path);
      torch::load(model, path);
      TORCH_CHECK(net->fc1->weight.eq(5).all().item<bool>());
    }
  });
}

TEST_CASE("A tensor may have the name of a field", "[checkpoint]") {
  struct CounterImpl : torch::nn::Module {
    CounterImpl() {
      register_parameter("w", torch::ones({2}));
      register_buffer("step", torch::full({1}, 7, torch::kLong));
      register_buffer("epoch", torch::ones({3}));
      register_buffer("rng", torch::ones({4}, torch::kByte));
    }
  };
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  const auto module = std::make_shared<CounterImpl>();
  ddp::save_state_dict(*module, path);
  Checkpoint checkpoint(module);
  checkpoint.load(path);
  CHECK(checkpoint.step() == 0);
  checkpoint.step(3).save(path);
  checkpoint.step(4).load(path);
  CHECK(checkpoint.step() == 3);
}

TEST_CASE("Random states of another kind are left alone", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  Net net;
  auto file = ddp::detail::new_dict().toGenericDict();
  file.insert("model", ddp::detail::to_value(ddp::state_dict(*net)));
  auto list = ddp::detail::new_list();
  list.toList().push_back(torch::get_num_threads());
  auto dicts = ddp::detail::new_list();
  dicts.toList().push_back(ddp::detail::new_dict());
  for (const c10::IValue& rng : {c10::IValue(torch::ones({5}, torch::kByte)),
                                 list,
                                 dicts,
                                 c10::IValue()}) {
    file.insert_or_assign("rng", rng);
    ddp::detail::write_torch_file(path, file);
    torch::manual_seed(5);
    const auto expected = torch::randn({3});
    torch::manual_seed(5);
    Checkpoint(net).load(path);
    CHECK(torch::equal(torch::randn({3}), expected));
  }
}

TEST_CASE("What was given to the checkpoint must be in the file",
          "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  Training training;
  ddp::save_state_dict(*training.net, path);
  CHECK_THAT(load_error(training, path),
             Contains(R"(it has no checkpoint["optimizer"])"));
  Checkpoint(training.net).add("optimizer", *training.optimizer).save(path);
  CHECK_THAT(load_error(training, path),
             Contains(R"(it has no checkpoint["sampler"])"));
  Checkpoint(training.net).load(path);  // extra entries are allowed
}

TEST_CASE("A damaged checkpoint leaves the training as it is", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  Training training;
  training.run(2);
  training.checkpoint.save(path);
  const auto whole = read_file(path);
  training.run(1);
  const auto before = training.state();
  write_file(path, whole.substr(0, whole.size() / 2));
  CHECK_THAT(load_error(training, path), Contains("it is cut off"));
  const auto weight = read_file(path).find("fc1.weight");
  REQUIRE(weight != std::string::npos);
  auto damaged = whole;
  damaged[weight] = 'x';
  write_file(path, damaged);
  CHECK_THAT(load_error(training, path),
             Contains("check sum of its record \"data.pkl\" is wrong"));
  CHECK(torch::equal(training.state(), before));
  CHECK(training.checkpoint.step() == 3);
}

TEST_CASE("A resumed training does not depend on the file", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "x.pt";
  torch::nn::Linear net(400, 400);
  torch::optim::Adam optimizer(net->parameters());
  torch::Tensor kept = torch::ones({400, 400});
  Checkpoint checkpoint(net);
  checkpoint.add("optimizer", optimizer).add("kept", kept);
  const auto step = [&] {
    optimizer.zero_grad();
    net->forward(torch::ones({1, 400})).pow(2).mean().backward();
    optimizer.step();
  };
  step();
  checkpoint.save(path);
  step();
  const auto expected = net->weight.detach().clone();
  checkpoint.load(path);
  std::filesystem::resize_file(path, 0);
  step();
  CHECK(torch::equal(net->weight, expected));
  CHECK(torch::equal(kept, torch::ones({400, 400})));
}

TEST_CASE("A failed save leaves the previous checkpoint", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  Training training;
  training.checkpoint.step(1).save(path);
  const auto previous = read_file(path);
  training.net->register_buffer("bad", torch::eye(2).to_sparse());
  CHECK_THROWS_WITH(training.checkpoint.save(path),
                    Contains("Cannot save " + path));
  CHECK(read_file(path) == previous);
  CHECK(folder.size() == 1);
}

TEST_CASE("Ranks save once and load the same", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  const int world = GENERATE(2, 3);
  ddp::test::run_ranks(world, [&](const Group& group) {
    Training training;
    const auto rank = group->getRank();
    {
      torch::NoGradGuard no_grad;
      training.net->fc1->weight.fill_(rank + 1);
    }
    training.checkpoint.process_group(group).step(10 + rank).save(path);
    {
      torch::NoGradGuard no_grad;
      training.net->fc1->weight.fill_(-1);
    }
    training.checkpoint.load(path);
    TORCH_CHECK(training.net->fc1->weight.eq(1).all().item<bool>());
    TORCH_CHECK(training.checkpoint.step() == 10);
  });
  const auto file = ddp::detail::read_torch_file(path).value.toGenericDict();
  CHECK(file.at("rng").toListRef().size() == static_cast<size_t>(world));
  CHECK(folder.size() == 1);
  // Another number of ranks loads everything except the random states.
  torch::manual_seed(5);
  const auto expected = torch::randn({3});
  torch::manual_seed(5);
  Training alone;
  torch::manual_seed(5);
  alone.checkpoint.load(path);
  CHECK(torch::equal(torch::randn({3}), expected));
}

TEST_CASE("An error of one rank is the error of all", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto path = folder / "a.pt";
  Training().checkpoint.step(7).save(path);
  const auto errors_of = [&](const std::function<void(Checkpoint&, int)>& act) {
    return ddp::test::try_ranks(3, [&](const Group& group) {
      Training training;
      const auto before = training.state();
      training.checkpoint.process_group(group).step(1);
      try {
        act(training.checkpoint, group->getRank());
      } catch (...) {
        TORCH_CHECK(torch::equal(training.state(), before));
        TORCH_CHECK(training.checkpoint.step() == 1);
        throw;
      }
    });
  };

  for (const auto& error : errors_of([&](Checkpoint&checkpoint, int) {
         checkpoint.save(folder / "no/folder");
       })) {
    CHECK_THAT(error,
               Contains("rank 0: Cannot save") &&
                   Contains("No such file or directory"));
  }
  for (const auto& error : errors_of([&](Checkpoint&checkpoint, int rank) {
         checkpoint.load(rank == 2 ? folder / "none" : path);
       })) {
    CHECK_THAT(error,
               Contains("rank 2: Cannot load") &&
                   Contains("No such file or directory"));
  }
  Training().checkpoint.step(8).save(folder / "b.pt");
  for (const auto& error : errors_of([&](Checkpoint&checkpoint, int rank) {
         checkpoint.load(rank == 1 ? folder / "b.pt" : path);
       })) {
    CHECK_THAT(error, Contains("rank 0 and rank 1 see different files"));
  }
}

}  // namespace checkpoint_test
