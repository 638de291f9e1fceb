#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <sstream>

#include <torch/cuda.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <ATen/cuda/CUDAGeneratorImpl.h>

#include "ddp/buffer_hook.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/exchanges/no_exchange.h"
#include "ddp/exchanges/power_sgd.h"
#include "ddp/graphed_step.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/join.h"
#include "ddp/nn/checkpoint_activations.h"
#include "ddp/nn/sync_batch_norm.h"
#include "ddp/optim/fused.h"
#include "test/fake_gpu/control.h"
#include "test/gpu/nccl_ranks.h"
#include "test/gpu/schedule.h"
#include "test/support/warnings.h"

// Compares trainings by a GraphedStep to eager ones, over NCCL with one thread
// and one GPU per rank.
namespace ddp {
namespace graphed_step_test {

using Catch::Contains;
using test::any_schedule;
using test::has_gpus;
using test::NcclRank;
using test::run_nccl_ranks;
using torch::Tensor;
using Options = DistributedDataParallelOptions;
using Tensors = std::vector<Tensor>;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool has_unused) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("dropout", dropout);
    register_module("last", last);
    if (has_unused) {
      unused = register_module("unused", torch::nn::Linear(2, 2));
    }
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      const auto places = torch::arange(parameter.numel()).remainder(7).sub(3);
      parameter.copy_(places.div(8).view(parameter.sizes()));
    }
  }
  Tensor forward(const Tensor& x) {
    return last(dropout(torch::relu(norm(first(x)))));
  }
  torch::nn::Linear first{6, 16};
  torch::nn::BatchNorm1d norm{16};
  torch::nn::Dropout dropout{0.25};
  torch::nn::Linear last{16, 3};
  torch::nn::Linear unused{nullptr};
};
TORCH_MODULE(Net);

/// A group of the job over the rank's backend.
struct Job {
  explicit Job(const NcclRank& rank) {
    std::vector<int> all(static_cast<size_t>(rank.size));
    std::iota(all.begin(), all.end(), 0);
    group = c10::make_intrusive<detail::MonitoredBackend>(
        rank.group,
        detail::GroupMembers{detail::kWorldGroup, all},
        std::chrono::minutes(1),
        record);
  }
  std::shared_ptr<detail::PeerState> record =
      std::make_shared<detail::PeerState>();
  c10::intrusive_ptr<detail::MonitoredBackend> group;
};

/// Options of a training.
struct Way {
  std::string optimizer = "sgd";
  std::string exchange = "all-reduce";
  bool is_graphed = true;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& kind, const Tensors& parameters) {
  using namespace torch::optim;
  if (kind == "sgd") {
    return std::make_unique<FusedSGD>(
        parameters, SGDOptions(0.125).momentum(0.5).weight_decay(0.125));
  }
  if (kind == "adam") {
    return std::make_unique<FusedAdam>(parameters,
                                       AdamOptions(0.125).amsgrad(true));
  }
  return std::make_unique<FusedAdamW>(parameters, AdamWOptions(0.125));
}

Options options_of(const Way& way, const Job& job) {
  // Several buckets.
  auto options = Options()
                     .process_group(job.group)
                     .first_bucket_cap_mb(0.0001)
                     .bucket_cap_mb(0.0003);
  if (way.exchange == "bfloat16") {
    options.exchange(
        std::make_shared<CastExchange>(job.group, torch::kBFloat16));
  } else if (way.exchange == "none") {
    options.exchange(std::make_shared<NoExchange>());
  }
  return options.static_graph(way.exchange == "static graph")
      .gradient_as_bucket_view(way.exchange == "view");
}

/// A model in training, with its step.
class Training {
 public:
  Training(const NcclRank& rank, const Way& way)
      : job(rank), net(way.exchange == "static graph"), rank_(rank), way_(way) {
    net->to(rank.device);
    {
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      auto generator =
          at::cuda::detail::getDefaultCUDAGenerator(rank.device.index());
      generator.set_current_seed(7);
    }
    model = std::make_unique<DistributedDataParallel<Net>>(
        net, options_of(way, job));
    optimizer = make_optimizer(way.optimizer, model->ptr()->parameters());
    graphed = make_graphed();
  }

  std::unique_ptr<GraphedStep> make_graphed() {
    return std::make_unique<GraphedStep>(
        *model, *optimizer, [this](const Tensors& in) {
          ++calls;
          return loss_of(in);
        });
  }

  Tensor loss_of(const Tensors& in) {
    auto loss = torch::nll_loss(
        torch::log_softmax((*model)(in[0]).to(torch::kFloat), 1), in[1]);
    return extra ? extra(loss) : loss;
  }

  /// Makes a step with rows of this rank and step.
  Tensor step(int64_t rows = 4) {
    ++steps;
    const auto numbers =
        torch::arange(rows * 6).mul(steps * 3 + rank_.rank + 1).remainder(11);
    const Tensors in{numbers.div(8).view({rows, 6}),
                     torch::arange(rows).add(steps).remainder(3)};
    optimizer->param_groups()[0].options().set_lr(
        1.0 / static_cast<double>(8 << (steps % 4)));
    if (way_.is_graphed) {
      return (*graphed)(in);
    }
    optimizer->zero_grad();
    const auto loss = loss_of({in[0].to(rank_.device), in[1].to(rank_.device)});
    loss.backward();
    optimizer->step();
    return loss.detach();
  }

  /// Copies of the parameters, buffers and gradients on the CPU.
  Tensors values() const {
    Tensors all;
    for (const auto& parameter : net->parameters()) {
      all.push_back(parameter.detach().cpu());
      all.push_back(parameter.grad().defined() ? parameter.grad().cpu()
                                               : torch::zeros({1}));
    }
    for (const auto& buffer : net->buffers()) {
      all.push_back(buffer.cpu());
    }
    return all;
  }

  Job job;
  Net net;
  std::unique_ptr<DistributedDataParallel<Net>> model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<GraphedStep> graphed;
  std::function<Tensor(const Tensor&)> extra;  // for the loss
  int calls = 0;                               // of the loss function
  int steps = 0;

 private:
  const NcclRank& rank_;
  const Way way_;
};

void expect_equal(const NcclRank& rank,
                  const Tensors& got,
                  const Tensors& expected,
                  const std::string& when) {
  rank.expect(got.size() == expected.size(), "other tensors");
  for (size_t i = 0; i < got.size(); ++i) {
    rank.expect(got[i].equal(expected[i]),
                when + ": tensor " + std::to_string(i) + " is " +
                    c10::str(got[i]) + " and not " + c10::str(expected[i]));
  }
}

/// Runs a training by a GraphedStep and an eager one, which must be equal.
/// @param between  called with the training before each step, from 1 on;
/// returns
///   the number of rows.
void compare(const NcclRank& rank,
             Way way,
             const std::function<int64_t(Training&, int)>& between,
             const std::function<void(const Training&)>& at_end = {}) {
  constexpr int kSteps = 20;
  std::vector<Tensors> expected;
  way.is_graphed = false;
  for (const bool is_graphed : {false, true}) {
    way.is_graphed = is_graphed;
    Training training(rank, way);
    for (int step = 1; step <= kSteps; ++step) {
      auto values = Tensors{training.step(between(training, step)).cpu()};
      for (auto& value : training.values()) {
        values.push_back(std::move(value));
      }
      if (is_graphed) {
        expect_equal(rank,
                     values,
                     expected[static_cast<size_t>(step - 1)],
                     "step " + std::to_string(step));
      } else {
        expected.push_back(std::move(values));
      }
    }
    if (is_graphed && at_end) {
      at_end(training);
    }
    rank.meet();
  }
}

int64_t four_rows(Training& /*training*/, int /*step*/) {
  return 4;
}

TEST_CASE("recorded steps equal eager ones", "[gpu][graph]") {
  const auto way = GENERATE(Way{"sgd", "all-reduce"},
                            Way{"adam", "all-reduce"},
                            Way{"adamw", "bfloat16"},
                            Way{"sgd", "static graph"},
                            Way{"adam", "view"},
                            Way{"adamw", "none"});
  if (!has_gpus(2)) {
    return;
  }
  INFO(way.optimizer << ", " << way.exchange << ", " << any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    compare(rank, way, four_rows, [&](const Training& training) {
      rank.expect(training.graphed->is_recorded(),
                  "not recorded: " + training.graphed->refusal());
      // Three warm-up steps and the recording.
      rank.expect(training.calls == 4, "the loss function ran again");
    });
  });
}

TEST_CASE("CUDA calls of a replayed step", "[gpu][graph][stand-in]") {
  const bool draws = GENERATE(false, true);  // random numbers, for dropout
  if (!has_gpus(2)) {
    return;
  }
  INFO("draws " << draws << ", " << any_schedule());
  constexpr uint64_t kReplays = 4;
  fake_gpu::Counts counts;
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Training training(rank, {"adam"});
    training.net->dropout->options.p(draws ? 0.25 : 0);
    const Tensors in{
        torch::ones({4, 6}, rank.device),
        torch::zeros({4}, torch::dtype(torch::kLong).device(rank.device))};
    const auto settle = [&] {
      rank.meet();
      torch::cuda::synchronize(rank.device.index());
      rank.meet();
    };
    for (int i = 0; i < 6; ++i) {
      (*training.graphed)(in);
    }
    rank.expect(training.graphed->is_recorded(), "not recorded");
    settle();
    if (rank.rank == 0) {
      fake_gpu::reset_counts();
    }
    rank.meet();
    for (uint64_t i = 0; i < kReplays; ++i) {
      (*training.graphed)(in);
    }
    rank.meet();
    if (rank.rank == 0) {
      counts = fake_gpu::counts();
    }
    settle();
  });
  const uint64_t steps = 2 * kReplays;  // of both ranks
  CHECK(counts.graph_launches == steps);
  CHECK(counts.copies_on_device == 2 * steps);  // the inputs
  CHECK(counts.event_records == steps);         // behind each launch
  // LibTorch writes the seed and the offset of the generator.
  CHECK(counts.cuda_calls() == (draws ? 6 : 4) * steps);
  CHECK(counts.nccl_calls() == 0);
  CHECK(counts.host_synchronizes() == 0);
}

TEST_CASE("one rank steps eagerly while another replays", "[gpu][graph]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    const auto rows = [&rank](Training&, int step) {
      return step % 7 == 0 && rank.rank == 1 ? 3 : 4;
    };
    compare(rank, {"adam"}, rows, [&](const Training& training) {
      rank.expect(training.graphed->is_recorded(), "not recorded");
      rank.expect(training.calls == (rank.rank == 0 ? 4 : 6), "other calls");
      const auto group = training.job.group->started();
      const auto passes = training.job.record->passes();
      rank.expect(passes == 20, c10::str("not 20 passes but ", passes));
      // The first, eager training has counted in another group object.
      rank.expect(group > 0, "no collective");
      static std::atomic<uint64_t> of_rank_0{0};
      if (rank.rank == 0) {
        of_rank_0 = group;
      }
      rank.meet();
      rank.expect(of_rank_0 == group, "other numbers of collectives");
    });
  });
}

TEST_CASE("options and passes of the program between replays", "[gpu][graph]") {
  const auto change =
      GENERATE(as<std::string>(), "weight decay", "passes", "no gradients");
  if (!has_gpus(2)) {
    return;
  }
  INFO(change << ", " << any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    const void* memory = nullptr;
    const auto between = [&](Training& training, int step) -> int64_t {
      const auto& weight = training.net->last->weight;
      if (change == "weight decay" && step == 9) {
        static_cast<torch::optim::SGDOptions&>(
            training.optimizer->param_groups()[0].options())
            .weight_decay(0.5);
      } else if (change == "no gradients" && step > 6) {
        training.optimizer->zero_grad();
      } else if (change == "passes" && (step == 4 || step == 8 || step == 12)) {
        // Before the recording. Then the bucket is aliased, or its gradients
        // have gone.
        const auto held = step == 8 ? weight.grad() : Tensor();
        training.optimizer->zero_grad();
        (*training.model)(torch::ones({4, 6}, rank.device)).sum().backward();
        const bool is_held = training.graphed->is_recorded();
        const bool moved = memory != weight.grad().const_data_ptr();
        rank.expect(!is_held || !moved, "the bucket has moved");
      }
      memory =
          weight.grad().defined() ? weight.grad().const_data_ptr() : nullptr;
      return 4;
    };
    compare(rank, {}, between, [&](const Training& training) {
      rank.expect(training.graphed->is_recorded(), "not recorded");
      rank.expect(training.calls == (change == "weight decay" ? 8 : 4),
                  "other calls");
    });
  });
}

/// Returns the error of a call, or "".
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

struct Change {
  std::string name;
  std::function<void(Training&)> make;
};

std::vector<Change> changes() {
  return {{"loads the optimizer",
           [](Training& training) {
             std::stringstream file;
             torch::save(*training.optimizer, file);
             torch::load(*training.optimizer, file);
           }},
          {"replaces a parameter's memory",
           [](Training& training) {
             auto& weight = training.net->first->weight;
             weight.set_data(weight.detach().clone());
           }},
          {"replaces a buffer's memory",
           [](Training& training) {
             auto& mean = training.net->norm->running_mean;
             mean.set_data(mean.clone());
           }},
          {"freezes",
           [](Training& training) {
             training.net->first->bias.requires_grad_(false);
           }},
          {"changes the group",
           [](Training& training) {
             (*training.model)->update_process_group(training.job.group);
           }},
          {"evaluates", [](Training& training) { training.net->eval(); }}};
}

TEST_CASE("a change that a graph does not know is an error until reset()",
          "[gpu][graph][errors]") {
  const auto change = GENERATE(from_range(changes()));
  if (!has_gpus(2)) {
    return;
  }
  INFO(change.name << ", " << any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Training training(rank, {"adam"});
    for (int i = 0; i < 6; ++i) {
      training.step();
    }
    rank.expect(training.graphed->is_recorded(), "not recorded");
    change.make(training);
    for (int i = 0; i < 2; ++i) {
      const auto error = error_of([&] { training.step(); });
      rank.expect(error.find("call reset()") != std::string::npos,
                  "no error but: " + error);
    }
    training.graphed->reset();
    for (int i = 0; i < 6; ++i) {
      training.step();
    }
    rank.expect(training.graphed->is_recorded(), "not recorded again");
    rank.meet();
  });
}

TEST_CASE("two steps of one model take turns", "[gpu][graph]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    std::unique_ptr<GraphedStep> other;
    const auto between = [&](Training& training, int step) {
      if (step == 1) {
        other = training.make_graphed();
      }
      std::swap(other, training.graphed);
      return 4;
    };
    compare(rank, {"adam", "bfloat16"}, between, [&](const Training& training) {
      rank.expect(
          training.graphed->is_recorded() && other->is_recorded() &&
              training.calls == 8,
          "not recorded: " + training.graphed->refusal() + other->refusal());
      other.reset();
    });
  });
}

TEST_CASE("a step object ends while its launches are queued", "[gpu][graph]") {
  const bool resets = GENERATE(true, false);
  if (!has_gpus(2)) {
    return;
  }
  INFO("resets " << resets << ", " << any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Tensors expected;
    for (const bool is_graphed : {false, true}) {
      Training training(rank, {"adam", "all-reduce", is_graphed});
      for (int step = 1; step <= 20; ++step) {
        training.step();
        if (step % 8 == 0 && resets) {
          training.graphed->reset();
        } else if (step % 8 == 0) {
          training.graphed = training.make_graphed();
        }
      }
      if (is_graphed) {
        expect_equal(rank, training.values(), expected, "at the end");
      } else {
        expected = training.values();
      }
      rank.meet();
    }
  });
}

TEST_CASE("a guard or other inputs before the recording", "[gpu][graph]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Training training(rank, {});
    {
      const NoSyncGuard guard(**training.model);
      for (int i = 0; i < 4; ++i) {
        training.step();
      }
    }
    for (int i = 0; i < 3; ++i) {
      training.step();
    }
    training.step(3);
    rank.expect(!training.graphed->is_recorded(), "recorded an odd batch");
    training.step();
    training.step();
    rank.expect(training.graphed->is_recorded(), "not recorded");
    const auto started = training.job.group->started();
    {
      const NoSyncGuard guard(**training.model);
      training.step();
    }
    rank.expect(training.job.group->started() == started, "not a local step");
    training.step();
    rank.expect(training.job.group->started() > started, "a local step");
    rank.expect(training.calls == 11, c10::str(training.calls, " calls"));
    rank.meet();
  });
}

TEST_CASE("steps in a Join are eager", "[gpu][graph]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Training training(rank, {"adam"});
    for (int i = 0; i < 5; ++i) {
      training.step();
    }
    rank.expect(training.graphed->is_recorded(), "not recorded");
    {
      Join join({**training.model});
      for (int i = 0; i < 1 + 2 * rank.rank; ++i) {
        training.step();
      }
      join.finish();
    }
    rank.expect(training.calls == 5 + 2 * rank.rank, "not eager in the Join");
    training.step();
    rank.expect(training.calls == 5 + 2 * rank.rank, "eager after the Join");
    rank.meet();
  });
}

TEST_CASE("ranks that replay stop after the same pass", "[gpu][graph]") {
  const auto exchange = GENERATE(as<std::string>(), "all-reduce", "bfloat16");
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  std::vector<int> last(2);
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Training training(rank, {"sgd", exchange});
    auto& vote = training.job.record->stop_vote();
    const auto inputs = [&](int64_t rows) {
      return Tensors{
          torch::ones({rows, 6}, rank.device),
          torch::zeros({rows}, torch::dtype(torch::kLong).device(rank.device))};
    };
    const auto four = inputs(4);
    const auto three = inputs(3);
    int step = 0;
    while (!vote.is_agreed()) {
      rank.expect(++step < 40, "never heard of the stop");
      const bool is_told = step == (rank.rank == 0 ? 5 : 9);
      if (is_told) {
        rank.meet();
        vote.vote_to_stop();
      }
      // One of the steps is eager on one rank.
      (*training.graphed)(step == 7 && rank.rank == 1 ? three : four);
      if (rank.rank == 0 || step % 10 == 0) {
        torch::cuda::synchronize(rank.device.index());
      }
    }
    rank.expect(training.graphed->is_recorded(), "not recorded");
    last[static_cast<size_t>(rank.rank)] = step;
    rank.meet();
  });
  CHECK(last[0] >= 6);
  CHECK(last[0] == last[1]);
}

TEST_CASE("activations that are computed again draw the same numbers",
          "[gpu][graph]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    const auto between = [&](Training& training, int) {
      training.extra = [&training](const Tensor& loss) {
        return checkpoint_activations(training.net->dropout, loss.expand({8}))
            .sum();
      };
      return 4;
    };
    compare(rank, {"adam"}, between, [&](const Training& training) {
      rank.expect(training.graphed->is_recorded(),
                  "not recorded: " + training.graphed->refusal());
    });
  });
}

TEST_CASE("a step that cannot be recorded stays eager", "[gpu][graph]") {
  const bool throws = GENERATE(false, true);
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    const test::Warnings warnings;
    const auto between = [&](Training& training, int) {
      training.extra = [&training, throws](const Tensor& loss) {
        if (!throws) {
          loss.item<float>();
        } else if (training.calls == 4) {
          throw 4;  // while it is recorded
        }
        return loss;
      };
      return 4;
    };
    compare(rank, {"adam"}, between, [&](const Training& training) {
      const auto& refusal = training.graphed->refusal();
      rank.expect(!training.graphed->is_recorded(), "recorded");
      rank.expect(
          refusal.find("without a read of a value on the host") !=
                  std::string::npos &&
              refusal.find(throws ? "no std::exception"
                                  : "stream is capturing") != std::string::npos,
          "another refusal: " + refusal);
      // The failed recording was one more.
      rank.expect(training.calls == 21, "other calls");
    });
    rank.expect(warnings.texts().size() == 1, "not one warning");
  });
}

TEST_CASE("a host read within the backward pass ends the training",
          "[gpu][graph][errors]") {
  if (!has_gpus(2)) {
    return;
  }
  INFO(any_schedule());
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    Net net(false);
    net->to(rank.device);
    DistributedDataParallel model(net, Options().process_group(rank.group));
    FusedSGD optimizer(model->parameters(), 0.125);
    GraphedStep step(model, optimizer, [&](const Tensors& in) {
      return model(in[0]).sum();
    });
    net->first->weight.register_hook(
        [](const Tensor& grad) { grad.sum().item<float>(); });
    const Tensors in{torch::ones({4, 6})};
    for (int i = 0; i < 3; ++i) {
      step(in);
    }
    auto error = error_of([&] { step(in); });
    rank.expect(error.find("stream is capturing") != std::string::npos,
                "no error but: " + error);
    error = error_of([&] { step(in); });
    rank.expect(error.find("one has failed on this rank") != std::string::npos,
                "no error but: " + error);
    rank.meet();
  });
}

TEST_CASE("refusals without a wrapper", "[gpu][graph][errors]") {
  const auto why =
      GENERATE(as<std::string>(), "waits", "norm", "inside", "optimizer");
  if (!has_gpus(1)) {
    return;
  }
  const c10::Device device(torch::kCUDA, 0);
  auto net = std::make_shared<torch::nn::Module>();
  torch::nn::Linear linear(6, 3);
  SyncBatchNorm norm(3);
  linear->to(device);
  norm->to(device);
  net->register_module("linear", linear);
  std::unique_ptr<DistributedDataParallel<torch::nn::Linear>> inside;
  if (why == "norm") {
    net->register_module("norm", norm);
  } else if (why == "inside") {
    inside =
        std::make_unique<DistributedDataParallel<torch::nn::Linear>>(linear);
    net->register_module("inside", inside->ptr());
  } else if (why == "optimizer") {
    torch::nn::Linear more(2, 2);
    more->to(device);
    net->register_module("more", more);
  } else if (why == "waits") {
    ::setenv("TORCH_NCCL_BLOCKING_WAIT", "1", 1);
  }
  auto parameters = linear->parameters();
  for (const auto& parameter : norm->parameters()) {
    parameters.push_back(parameter);
  }
  FusedSGD optimizer(parameters, 0.125);
  GraphedStep step(net, optimizer, [&](const Tensors& in) {
    return norm(linear(in[0])).sum();
  });
  const test::Warnings warnings;
  for (int i = 0; i < 5; ++i) {
    step({torch::ones({4, 6})});
  }
  ::unsetenv("TORCH_NCCL_BLOCKING_WAIT");
  CHECK_FALSE(step.is_recorded());
  CHECK_THAT(step.refusal(),
             Contains(why == "norm"     ? "no SyncBatchNorm in training mode"
                      : why == "inside" ? "itself as the model"
                      : why == "waits"  ? "TORCH_NCCL_BLOCKING_WAIT"
                                        : "does not have more.weight"));
}

struct Refusal {
  std::string name;
  std::function<Options(const Job&)> options;
  std::string text;
};

std::vector<Refusal> refusals() {
  const auto plain = [](const Job& job) {
    return Options().process_group(job.group);
  };
  return {
      {"PowerSGD",
       [=](const Job& job) {
         return plain(job).exchange(std::make_shared<CastExchange>(
             std::make_shared<PowerSGD>(job.group), torch::kBFloat16));
       },
       "but got ddp::PowerSGD"},
      {"unused parameters",
       [=](const Job& job) { return plain(job).find_unused_parameters(true); },
       "without find_unused_parameters"},
      {"a hook of buffers",
       [=](const Job& job) {
         return plain(job).buffer_hook([](auto&, const auto&) {});
       },
       "without a buffer_hook"}};
}

TEST_CASE("options that cannot be recorded", "[gpu][graph][errors]") {
  const auto refusal = GENERATE(from_range(refusals()));
  if (!has_gpus(2)) {
    return;
  }
  INFO(refusal.name);
  run_nccl_ranks(2, [&](const NcclRank& rank) {
    const test::Warnings warnings;
    const Job job(rank);
    Net net(false);
    net->to(rank.device);
    DistributedDataParallel model(net, refusal.options(job));
    FusedSGD optimizer(model->parameters(), 0.125);
    GraphedStep step(model, optimizer, [&](const Tensors& in) {
      return model(in[0]).sum();
    });
    for (int i = 0; i < 6; ++i) {
      step({torch::ones({4, 6})});
    }
    rank.expect(!step.is_recorded(), "recorded");
    rank.expect(step.refusal().find(refusal.text) != std::string::npos,
                "another refusal: " + step.refusal());
    rank.meet();
  });
}

TEST_CASE("a module without a wrapper", "[gpu][graph]") {
  if (!has_gpus(1)) {
    return;
  }
  INFO(any_schedule());
  const c10::Device device(torch::kCUDA, 0);
  std::vector<Tensors> expected;
  for (const bool is_graphed : {false, true}) {
    CAPTURE(is_graphed);
    torch::manual_seed(3);
    Net net(true);
    net->to(device);
    FusedAdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.125));
    int calls = 0;
    const auto loss_of = [&](const Tensors& in) {
      ++calls;
      return net->forward(in[0]).pow(2).mean();
    };
    GraphedStep graphed(net, optimizer, loss_of);
    for (int step = 0; step < 12; ++step) {
      const Tensors in{
          torch::arange(24).add(step).remainder(5).view({4, 6}).div(4)};
      Tensor loss;
      if (is_graphed) {
        loss = graphed(in);
      } else {
        optimizer.zero_grad();
        loss = loss_of({in[0].to(device)});
        loss.backward();
        optimizer.step();
      }
      Tensors values{loss.detach().cpu()};
      for (const auto& parameter : net->parameters()) {
        values.push_back(parameter.detach().cpu());
        values.push_back(parameter.grad().defined() ? parameter.grad().cpu()
                                                    : Tensor());
      }
      if (!is_graphed) {
        expected.push_back(values);
        continue;
      }
      for (size_t i = 0; i < values.size(); ++i) {
        const auto& other = expected[static_cast<size_t>(step)][i];
        CAPTURE(step, i);
        REQUIRE(values[i].defined() == other.defined());
        REQUIRE((!other.defined() || values[i].equal(other)));
      }
      if (step == 8) {
        optimizer.zero_grad();  // the next replay gives the gradients back
      }
    }
    CHECK(graphed.is_recorded() == is_graphed);
    CHECK(calls == (is_graphed ? 4 : 12));
  }
}

}  // namespace graphed_step_test
}  // namespace ddp
