#include "ddp/nn/sync_batch_norm.h"

#include <cstdlib>
#include <sstream>

#include <c10/util/ScopeExit.h>
#include <torch/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/optim/model_averager.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace sync_batch_norm_test {

using Catch::Contains;
using test::FakeBackend;
using test::Group;
using test::run_ranks;
using test::try_ranks;
using torch::Tensor;
using torch::nn::BatchNormOptions;
namespace nn = torch::nn;

/// Returns distinct numbers, the same on all ranks.
Tensor numbers(at::IntArrayRef sizes, double seed, torch::Dtype dtype) {
  const auto places = torch::arange(c10::multiply_integers(sizes), at::kDouble);
  return ((places * 0.7 + seed).sin() * 3 + seed).view(sizes).to(dtype);
}

/// Gives the layer's weight and bias values that matter, if it has them.
template <typename Norm>
void fill(Norm& norm) {
  const torch::NoGradGuard no_grad;
  if (norm.weight.defined()) {
    norm.weight.copy_(
        numbers(norm.weight.sizes(), 1, norm.weight.dtype().toScalarType()));
    norm.bias.copy_(
        numbers(norm.bias.sizes(), 2, norm.bias.dtype().toScalarType()));
  }
}

void check_close(const Tensor& got,
                 const Tensor& expected,
                 double tolerance,
                 const std::string& what) {
  TORCH_CHECK(got.scalar_type() == expected.scalar_type(), what);
  const auto difference = (got.to(at::kDouble) - expected.to(at::kDouble));
  const double error =
      got.numel() == 0 ? 0 : difference.abs().max().item<double>();
  TORCH_CHECK(got.sizes() == expected.sizes() && error <= tolerance,
              what,
              " is off by ",
              error);
}

Tensor grad_or_zeros(const Tensor& tensor) {
  return tensor.grad().defined() ? tensor.grad() : torch::zeros_like(tensor);
}

/// Returns the first row of each rank: rank r has the rows first[r] to first[r
/// + 1].
std::vector<int64_t> split(const std::vector<int64_t>& rows) {
  std::vector<int64_t> first{0};
  for (const auto count : rows) {
    first.push_back(first.back() + count);
  }
  return first;
}

/// Compares three steps of a rank with a plain layer over the batches of all
/// ranks.
template <typename Plain>
void compare(const Group& group,
             const std::vector<int64_t>& rows,
             std::vector<int64_t> shape,
             const BatchNormOptions& options,
             torch::Dtype dtype,
             double tolerance,
             bool channels_last = false) {
  Plain whole(options);
  SyncBatchNorm part(options, group);
  const auto layer_type = dtype == at::kDouble ? at::kDouble : at::kFloat;
  whole->to(layer_type);
  part->to(layer_type);
  fill(*whole);
  fill(*part);
  const auto first = split(rows);
  const int rank = group->getRank();
  for (int step = 1; step <= 3; ++step) {
    shape[0] = first.back();
    auto all = numbers(shape, step, dtype);
    if (channels_last) {
      all = all.contiguous(at::MemoryFormat::ChannelsLast);
    }
    const auto mine = all.slice(0, first[rank], first[rank + 1])
                          .detach()
                          .clone()
                          .requires_grad_();
    const auto all_in = all.to(layer_type).requires_grad_();
    const auto slope = numbers(shape, step + 0.5, dtype);
    const auto expected = whole->forward(all_in);
    (expected * slope.to(layer_type)).sum().backward();
    const auto got = part->forward(mine);
    (got * slope.slice(0, first[rank], first[rank + 1])).sum().backward();

    const auto slice = [&](const Tensor& tensor) {
      return tensor.slice(0, first[rank], first[rank + 1]).to(dtype);
    };
    check_close(got, slice(expected), tolerance, "the output");
    TORCH_CHECK(!channels_last || got.numel() == 0 ||
                got.is_contiguous(at::MemoryFormat::ChannelsLast));
    check_close(
        mine.grad(), slice(all_in.grad()), tolerance, "the input's gradient");
    for (const auto& item : whole->named_parameters()) {
      const auto sum =
          reduce_tensor(grad_or_zeros(part->named_parameters()[item.key()]),
                        Reduction::sum,
                        group);
      check_close(sum, item.value().grad(), 30 * tolerance, item.key());
    }
    for (const auto& item : whole->named_buffers()) {
      check_close(part->named_buffers()[item.key()],
                  item.value(),
                  tolerance,
                  item.key());
    }
    whole->zero_grad();
    part->zero_grad();
  }
}

TEST_CASE("equals a batch norm over the batches of all ranks", "[syncbn]") {
  const auto rows = GENERATE(std::vector<int64_t>{3, 3},
                             std::vector<int64_t>{1, 4},
                             std::vector<int64_t>{2, 0, 3},
                             std::vector<int64_t>{0, 1, 5, 2});
  const auto size = static_cast<int>(rows.size());
  run_ranks(size, [&](const Group& group) {
    const auto with = [](std::optional<double> momentum, bool affine) {
      return BatchNormOptions(4).momentum(momentum).affine(affine).eps(1e-3);
    };
    compare<nn::BatchNorm1d>(
        group, rows, {0, 4}, with(0.1, true), at::kDouble, 1e-12);
    compare<nn::BatchNorm1d>(
        group, rows, {0, 4, 7}, with({}, false), at::kDouble, 1e-12);
    compare<nn::BatchNorm2d>(
        group, rows, {0, 4, 3, 5}, with(0.3, true), at::kFloat, 2e-5);
    compare<nn::BatchNorm2d>(
        group, rows, {0, 4, 3, 5}, with(0.3, true), at::kFloat, 2e-5, true);
    compare<nn::BatchNorm3d>(
        group, rows, {0, 4, 2, 3, 2}, with({}, true), at::kFloat, 2e-5);
    compare<nn::BatchNorm2d>(group,
                             rows,
                             {0, 4, 2, 2},
                             with(0.1, true).track_running_stats(false),
                             at::kDouble,
                             1e-12);
  });
}

TEST_CASE("narrow inputs have statistics in float", "[syncbn]") {
  const auto dtype = GENERATE(torch::kHalf, torch::kBFloat16);
  run_ranks(3, [&](const Group& group) {
    compare<nn::BatchNorm2d>(group,
                             {2, 0, 4},
                             {0, 4, 3, 3},
                             BatchNormOptions(4),
                             dtype,
                             dtype == torch::kHalf ? 8e-3 : 6e-2);
    // The ranks' means 250, 252 and 254 are exact in bfloat16, so their mean
    // has to be exactly 252.
    SyncBatchNorm norm(BatchNormOptions(1).momentum(1), group);
    norm->forward(torch::full({64, 1}, 250.0 + 2 * group->getRank(), dtype));
    TORCH_CHECK(norm->running_mean.item<double>() == 252, norm->running_mean);
    norm->to(dtype);  // also the buffers
    norm->forward(torch::full({64, 1}, 2.0 * group->getRank(), dtype));
    TORCH_CHECK(norm->running_mean.item<double>() == 2, norm->running_mean);
    TORCH_CHECK(norm->running_mean.scalar_type() == dtype);
  });
}

TEST_CASE("a mean far from zero costs no accuracy", "[syncbn]") {
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(BatchNormOptions(1).momentum(1), group);
    // The inputs are 10000 -+ 1 on one rank and 10002 -+ 1 on the other: their
    // variance is 2.
    const auto signs = torch::tensor({-1.0f, 1.0f}).repeat({512}).view({-1, 1});
    const auto input = signs + 10000 + 2 * group->getRank();
    const auto output = norm->forward(input);
    const double sigma = std::sqrt(2 + 1e-5);
    const auto expected = (signs + 2 * group->getRank() - 1) / sigma;
    check_close(output, expected, 1e-2 / 10, "the output");
    TORCH_CHECK(
        std::abs(norm->running_var.item<double>() - 2 * 2048.0 / 2047) < 1e-3,
        norm->running_var);
  });
}

TEST_CASE("a SyncBatchNorm of one rank is a batch norm", "[syncbn]") {
  const bool has_group = GENERATE(false, true);
  run_ranks(1, [&](const Group& group) {
    SyncBatchNorm ours(4, has_group ? group : nullptr);
    nn::BatchNorm2d plain(4);
    for (int step = 0; step < 3; ++step) {
      const auto input = numbers({3, 4, 2, 2}, step, torch::kFloat);
      TORCH_CHECK(ours->forward(input).equal(plain->forward(input)));
      TORCH_CHECK(ours->running_var.equal(plain->running_var));
      TORCH_CHECK(ours->num_batches_tracked.equal(plain->num_batches_tracked));
    }
  });
}

TEST_CASE("a layer has the ranks of its wrapper", "[syncbn]") {
  run_ranks(2, [](const Group& group) {
    const int rank = group->getRank();
    const auto input = torch::full({4, 3}, rank + 1.0);
    const auto momentum = BatchNormOptions(3).momentum(1);
    nn::Sequential net{SyncBatchNorm(momentum), nn::Linear(3, 1)};
    const auto& norm = *net[0]->as<SyncBatchNormImpl>();
    DistributedDataParallel model(
        net,
        DistributedDataParallelOptions().process_group(group).broadcast_buffers(
            false));
    const auto mean_of = [&] {
      model->forward(input).sum().backward();
      return norm.running_mean[0].item<double>();
    };
    TORCH_CHECK(mean_of() == 1.5);
    model->update_process_group(c10::make_intrusive<FakeBackend>(1));
    TORCH_CHECK(mean_of() == rank + 1);

    // A layer that was given another group keeps it.
    SyncBatchNorm own(momentum, group);
    const DistributedDataParallel other(
        nn::Sequential(own, nn::Linear(3, 1)),
        DistributedDataParallelOptions()
            .process_group(c10::make_intrusive<FakeBackend>(1))
            .broadcast_buffers(false));
    own->forward(input);
    TORCH_CHECK(own->running_mean[0].item<double>() == 1.5);
    own->set_process_group(c10::make_intrusive<FakeBackend>(1));
    own->forward(input);
    TORCH_CHECK(own->running_mean[0].item<double>() == rank + 1);
  });
}

TEST_CASE("a missing group is an error if WORLD_SIZE is above 1",
          "[syncbn][errors]") {
  REQUIRE(::setenv("WORLD_SIZE", "2", 1) == 0);
  const auto unset = c10::make_scope_exit([] { ::unsetenv("WORLD_SIZE"); });
  const auto weight = torch::zeros({3}).requires_grad_();
  const auto refused = [](const std::string& who) {
    return Contains("Expected a process group for " + who +
                    ", because WORLD_SIZE is 2");
  };
  CHECK_THROWS_WITH(SyncBatchNorm(3)->forward(torch::ones({4, 3})),
                    refused("SyncBatchNorm"));
  CHECK_THROWS_WITH(ModelAverager(4), refused("ModelAverager"));
  CHECK_THROWS_WITH(DistributedDataParallel(nn::Linear(2, 2)),
                    refused("DistributedDataParallel"));
  CHECK_THROWS_WITH(
      ZeroRedundancyOptimizer({weight},
                              [](const auto& groups) {
                                return std::make_unique<torch::optim::SGD>(
                                    groups, torch::optim::SGDOptions(0.1));
                              }),
      refused("ZeroRedundancyOptimizer"));
  const auto group = c10::make_intrusive<FakeBackend>(2);
  CHECK_NOTHROW(ModelAverager(ModelAveragerOptions(4, group)));
}

TEST_CASE("evaluation is each rank's own", "[syncbn]") {
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm ours(4, group);
    nn::BatchNorm2d plain(4);
    const auto input = numbers({3, 4, 2, 2}, 1, torch::kFloat);
    ours->forward(input);
    plain->running_mean.copy_(ours->running_mean);
    plain->running_var.copy_(ours->running_var);
    ours->eval();
    plain->eval();
    if (group->getRank() == 1) {  // a collective would wait for rank 0
      TORCH_CHECK(ours->forward(input).equal(plain->forward(input)));
    }
    SyncBatchNorm none(BatchNormOptions(4).track_running_stats(false), group);
    none->eval();
    nn::BatchNorm2d plain_none(BatchNormOptions(4).track_running_stats(false));
    if (group->getRank() == 0) {
      TORCH_CHECK(none->forward(input).equal(plain_none->forward(input)));
    }
  });
}

TEST_CASE("a batch that is empty on all ranks changes nothing", "[syncbn]") {
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(4, group);
    const auto input = torch::zeros({0, 4, 2, 2}).requires_grad_();
    const auto output = norm->forward(input);
    TORCH_CHECK(output.sizes() == input.sizes());
    output.sum().backward();
    TORCH_CHECK(input.grad().sizes() == input.sizes());
    TORCH_CHECK(norm->weight.grad().eq(0).all().item<bool>());
    TORCH_CHECK(norm->running_var.eq(1).all().item<bool>());
  });
}

TEST_CASE("an input without a gradient needs no second exchange", "[syncbn]") {
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(2, group);
    const auto input = numbers({3, 2}, group->getRank(), torch::kFloat);
    const auto output = norm->forward(input);
    if (group->getRank() == 0) {
      output.sum().backward();
      check_close(norm->bias.grad(), torch::full({2}, 3.0f), 1e-6, "bias.grad");
    }
    const torch::NoGradGuard no_grad;
    TORCH_CHECK(!norm->forward(input).requires_grad());
    TORCH_CHECK(norm->num_batches_tracked.item<int64_t>() == 2);
  });
}

TEST_CASE("an input that fits not is an error on its rank",
          "[syncbn][errors]") {
  const int wrong = GENERATE(0, 2);
  const auto bad = GENERATE(as<Tensor>(),
                            torch::zeros({2, 3, 2}),
                            torch::zeros({4}),
                            torch::zeros({2, 4}, torch::kDouble),
                            torch::zeros({0, 5}),
                            torch::zeros({2, 4}, torch::kInt));
  std::ostringstream named;
  named << "a " << bad.scalar_type() << " input of shape "
        << c10::Join(" x ", bad.sizes()) << " on cpu; "
        << "give every rank an input of 4 channels";
  run_ranks(3, [&](const Group& group) {
    SyncBatchNorm norm(4, group);
    const auto good = numbers({2, 4, 2}, 1, torch::kFloat);
    norm->forward(good);
    const auto before = norm->running_mean.clone();
    if (group->getRank() == wrong) {
      std::string error;
      try {
        norm->forward(bad);
      } catch (const c10::Error& caught) {
        error = caught.what_without_backtrace();
      }
      TORCH_CHECK(error.find(named.str()) != std::string::npos, error);
    }
    TORCH_CHECK(norm->running_mean.equal(before));
    norm->forward(good);
    TORCH_CHECK(norm->num_batches_tracked.item<int64_t>() == 2);
  });
}

TEST_CASE("layers that differ are an error on all ranks", "[syncbn][errors]") {
  const int kind = GENERATE(0, 1, 2);
  const auto errors = try_ranks(3, [&](const Group& group) {
    const bool odd = group->getRank() == 1;
    BatchNormOptions options(odd && kind == 0 ? 5 : 4);
    options.eps(odd && kind == 1 ? 1e-3 : 1e-5);
    SyncBatchNorm norm(options, group);
    norm->to(odd && kind == 2 ? torch::kDouble : torch::kFloat);
    norm->forward(torch::ones({2, options.num_features()},
                              norm->weight.options().requires_grad(false)));
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains("Expected the same SyncBatchNorm on all ranks") &&
                   Contains("on ranks 0, 2: 4 channels and eps 1e-05 for "
                            "statistics in Float;") &&
                   Contains("on rank 1: "));
  }
}

TEST_CASE("ranks that differ in their layers without a group are refused",
          "[syncbn][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    nn::Sequential net{nn::Linear(3, 3)};
    if (group->getRank() == 0) {
      net->push_back(SyncBatchNorm(3));
    } else {
      net->push_back(nn::BatchNorm1d(3));
    }
    DistributedDataParallel model(
        net, DistributedDataParallelOptions().process_group(group));
  });
  for (const auto& error : errors) {
    CHECK_THAT(error,
               Contains("the number of SyncBatchNorm layers without a group of "
                        "their own is 1; on rank 1: option the number of "));
  }
}

TEST_CASE("one value has no variance", "[syncbn][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(4, group);
    norm->forward(torch::ones({group->getRank(), 4}));
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("more than one value per channel over all"));
  }
  CHECK_THROWS_WITH(SyncBatchNorm(0), Contains("at least one channel"));
}

TEST_CASE("gradients of gradients are refused", "[syncbn][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(4, group);
    const auto input =
        numbers({3, 4}, group->getRank(), torch::kFloat).requires_grad_();
    torch::autograd::grad(
        {norm->forward(input).pow(2).sum()}, {input}, {}, true, true);
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("without create_graph"));
  }
}

struct MemberImpl : nn::Module {
  MemberImpl() { register_module("norm", norm); }
  Tensor forward(const Tensor& input) { return norm(input); }
  nn::BatchNorm1d norm{4};
};
TORCH_MODULE(Member);

struct ByNameImpl : nn::Module {
  ByNameImpl() { register_module("norm", nn::BatchNorm1d(4)); }
};
TORCH_MODULE(ByName);

TEST_CASE("a module is converted in place", "[syncbn][convert]") {
  auto shared = nn::BatchNorm1d(BatchNormOptions(4).eps(0.5).momentum({}));
  nn::Sequential inner(nn::Linear(4, 4), shared, nn::BatchNorm3d(2));
  nn::ModuleList list(nn::BatchNorm2d(BatchNormOptions(3).affine(false)),
                      inner);
  using Named = std::pair<std::string, std::shared_ptr<nn::Module>>;
  nn::ModuleDict dict(std::vector<Named>{{"norm", nn::BatchNorm2d(6).ptr()},
                                         {"list", list.ptr()},
                                         {"again", shared.ptr()}});
  ByName holder;
  holder->register_module("dict", dict);
  list->eval();
  const auto parameters = holder->named_parameters();
  const auto buffers = holder->named_buffers();
  CHECK(convert_sync_batchnorm(*holder) == 6);
  CHECK(convert_sync_batchnorm(*holder) == 0);
  const auto expect_same = [](const auto& before, const auto& after) {
    REQUIRE(before.keys() == after.keys());
    for (const auto& item : before) {
      INFO(item.key());
      CHECK(item.value().is_alias_of(after[item.key()]));
    }
  };
  expect_same(parameters, holder->named_parameters());
  expect_same(buffers, holder->named_buffers());
  CHECK(dict["norm"]->parameters()[0].is_same(parameters["dict.norm.weight"]));

  auto* found = inner->ptr(1)->as<SyncBatchNorm>();
  REQUIRE(found != nullptr);
  CHECK(found->options.eps() == 0.5);
  CHECK(!found->options.momentum());
  CHECK(!found->is_training());
  CHECK(inner->children()[1].get() == found);
  CHECK(dict["again"].get() == found);
  CHECK(dict["norm"]->is_training());
  CHECK(list[0]->as<SyncBatchNorm>() != nullptr);
  CHECK(holder->named_children()["norm"]->as<SyncBatchNorm>() != nullptr);
  std::ostringstream text;
  text << *inner;
  CHECK_THAT(text.str(),
             Contains("ddp::SyncBatchNorm(4, eps=0.5, momentum=None, "
                      "affine=true, track_running_stats=true)"));
}

TEST_CASE("a child of a container that is no element is converted",
          "[syncbn][convert]") {
  nn::Sequential net(nn::Linear(4, 4));
  net->register_module("norm", nn::BatchNorm1d(4));
  CHECK(convert_sync_batchnorm(*net) == 1);
  CHECK(net->named_children()["norm"]->as<SyncBatchNormImpl>() != nullptr);
  CHECK(net->ptr(0)->as<nn::LinearImpl>() != nullptr);
}

TEST_CASE("a layer that is a member cannot be converted",
          "[syncbn][convert][errors]") {
  nn::Sequential net(nn::BatchNorm1d(4), Member());
  CHECK_THROWS_WITH(convert_sync_batchnorm(*net),
                    Contains("Expected batch norm 1.norm") &&
                        Contains("MemberImpl holds it as a member") &&
                        Contains("declare that member as ddp::SyncBatchNorm"));
  CHECK(net->ptr(0)->as<nn::BatchNorm1d>() != nullptr);
  nn::BatchNorm2d alone(4);
  CHECK_THROWS_WITH(convert_sync_batchnorm(*alone),
                    Contains("but got a batch norm"));
}

nn::Sequential make_net() {
  nn::Sequential net(nn::Conv2d(1, 3, 3),
                     nn::BatchNorm2d(3),
                     nn::Conv2d(nn::Conv2dOptions(3, 2, 2).bias(false)),
                     nn::BatchNorm2d(2));
  const torch::NoGradGuard no_grad;
  double seed = 0;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(numbers(parameter.sizes(), ++seed, torch::kFloat) / 8);
  }
  net->to(torch::kDouble);
  return net;
}

TEST_CASE("a converted net under DDP trains as the plain one on all batches",
          "[syncbn][convert]") {
  const int size = GENERATE(2, 3);
  run_ranks(size, [&](const Group& group) {
    auto whole = make_net();
    auto net = make_net();
    const auto copy =
        std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone());
    TORCH_CHECK(convert_sync_batchnorm(*net, group) == 2);
    DistributedDataParallel model(
        net,
        DistributedDataParallelOptions().process_group(group).bucket_cap_mb(
            1e-4));
    torch::optim::SGD ours(model->parameters(), 0.1);
    torch::optim::SGD plain(whole->parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      const auto batch = numbers({2 * size, 1, 6, 6}, step, torch::kDouble);
      const auto slope = numbers({2 * size, 2, 3, 3}, step + 9, torch::kDouble);
      const auto mine = [&](const Tensor& tensor) {
        return tensor.slice(0, 2 * group->getRank(), 2 * group->getRank() + 2);
      };
      plain.zero_grad();
      (whole->forward(batch) * slope).mean().backward();
      plain.step();
      ours.zero_grad();
      (model->forward(mine(batch)) * mine(slope)).mean().backward();
      ours.step();
    }
    for (const auto& item : whole->named_parameters()) {
      check_close(
          net->named_parameters()[item.key()], item.value(), 1e-11, item.key());
    }
    TORCH_CHECK(!copy->parameters().back().equal(net->parameters().back()));
    for (const auto& item : whole->named_buffers()) {
      check_close(
          net->named_buffers()[item.key()], item.value(), 1e-11, item.key());
    }
  });
}

TEST_CASE("a clone is a layer of its own", "[syncbn]") {
  SyncBatchNorm norm(BatchNormOptions(3).eps(0.25));
  const auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(norm->clone());
  REQUIRE(copy);
  CHECK(copy->options.eps() == 0.25);
  copy->forward(numbers({4, 3}, 1, torch::kFloat));
  CHECK(norm->num_batches_tracked.item<int64_t>() == 0);
  CHECK(copy->num_batches_tracked.item<int64_t>() == 1);
}

}  // namespace sync_batch_norm_test
}  // namespace ddp
