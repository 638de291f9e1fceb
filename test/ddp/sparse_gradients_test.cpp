#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "ddp/distributed_data_parallel.h"
#include "test/support/catch.h"
#include "test/support/fake_backend.h"
#include "test/support/local_ranks.h"

namespace ddp {
namespace sparse_gradients_test {

using test::FakeBackend;
using test::Group;
using test::run_ranks;
using test::try_ranks;
using Options = DistributedDataParallelOptions;

Options over(const Group& group) {
  return Options().process_group(group);
}

/// An embedding bag (mean of words) and a linear layer. The table's gradient is
/// sparse if `sparse`.
struct BagImpl : torch::nn::Module {
  BagImpl(int64_t words, bool sparse)
      : table(torch::nn::EmbeddingBagOptions(words, 4).sparse(sparse)),
        fc(4, 3) {
    register_module("table", table);
    register_module("fc", fc);
    torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      const auto line = torch::arange(parameter.numel()) * 0.01;
      parameter.copy_(line.view(parameter.sizes()));
    }
  }
  torch::Tensor forward(const torch::Tensor& words) { return fc(table(words)); }
  torch::nn::EmbeddingBag table;
  torch::nn::Linear fc;
};
TORCH_MODULE(Bag);

/// Each rank reads words of its own; rank 0 reads one word twice.
torch::Tensor words_of(int rank) {
  return torch::tensor({{int64_t{0}, int64_t{0}, int64_t{1} + rank},
                        {int64_t{2}, int64_t{3} + rank, int64_t{2}}});
}

TEST_CASE("a sparse layer trains as the dense one does", "[sparse]") {
  const int size = GENERATE(1, 2, 3);
  const bool finds_unused = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    Bag sparse(10, true);
    Bag dense(10, false);
    DistributedDataParallel sparse_model(
        sparse, over(group).find_unused_parameters(finds_unused));
    DistributedDataParallel dense_model(dense, over(group));
    torch::optim::SGD sparse_sgd(sparse->parameters(), 0.5);
    torch::optim::SGD dense_sgd(dense->parameters(), 0.5);
    const auto words = words_of(group->getRank());
    for (int step = 0; step < 4; ++step) {
      // The table's gradient becomes undefined, the linear layer's becomes
      // zero.
      sparse_sgd.zero_grad(/*set_to_none=*/true);
      dense_sgd.zero_grad();
      sparse_model->forward(words).square().sum().backward();
      dense_model->forward(words).square().sum().backward();
      const auto grad = sparse->table->weight.grad();
      TORCH_CHECK(grad.is_sparse());
      TORCH_CHECK(grad.to_dense().allclose(dense->table->weight.grad()),
                  grad.to_dense());
      sparse_sgd.step();
      dense_sgd.step();
    }
    for (const auto& item : dense->named_parameters()) {
      TORCH_CHECK(sparse->named_parameters()[item.key()].allclose(item.value()),
                  item.key());
    }
  });
}

TEST_CASE("a sparse gradient is the mean over ranks, row by row", "[sparse]") {
  const int size = GENERATE(2, 4);
  const bool comes_first = GENERATE(false, true);
  run_ranks(size, [&](const Group& group) {
    const int rank = group->getRank();
    auto table = torch::zeros({8, 2}).requires_grad_();
    auto dense = torch::ones({3}).requires_grad_();
    std::vector<NamedParameter> parameters{{"dense", dense},
                                           {"table", table, true}};
    if (comes_first) {
      std::swap(parameters[0], parameters[1]);
    }
    Reducer reducer(parameters, group);
    for (int step = 1; step <= 3; ++step) {
      table.mutable_grad() = torch::Tensor();
      dense.mutable_grad() = torch::Tensor();
      // Row 7 on all ranks, and row `rank` on this rank.
      const auto rows = torch::tensor({int64_t{7}, int64_t{rank}});
      auto loss = step * (rank + 1) *
                      torch::embedding(table, rows, -1, false, true).sum() +
                  step * dense.sum();
      loss.backward();
      auto expected = torch::zeros({8, 2});
      for (int r = 0; r < size; ++r) {
        const double share = step * (r + 1.0) / size;
        expected[r] += share;
        expected[7] += share;
      }
      TORCH_CHECK(table.grad().is_sparse());
      TORCH_CHECK(table.grad().to_dense().allclose(expected),
                  table.grad().to_dense());
      TORCH_CHECK(dense.grad().allclose(torch::full({3}, double(step))));
    }
  });
}

TEST_CASE("sparse gradients gather under no_sync", "[sparse]") {
  run_ranks(2, [](const Group& group) {
    Bag net(10, true);
    DistributedDataParallel model(net, over(group));
    const auto words = words_of(group->getRank());
    model->forward(words).sum().backward();
    const auto once = net->table->weight.grad().to_dense().clone();
    model->zero_grad();
    {
      NoSyncGuard no_sync(*model);
      model->forward(words).sum().backward();
    }
    model->forward(words).sum().backward();
    const auto twice = net->table->weight.grad();
    TORCH_CHECK(twice.is_sparse());
    TORCH_CHECK(twice.to_dense().allclose(2 * once), twice.to_dense());
  });
}

TEST_CASE("a rank that uses no row has no part in the sum", "[sparse]") {
  run_ranks(2, [](const Group& group) {
    auto table = torch::zeros({5, 2}).requires_grad_();
    auto other = torch::ones({1}).requires_grad_();
    Reducer reducer({{"table", table, true}, {"other", other}},
                    group,
                    Options().find_unused_parameters(true));
    auto loss = other.sum();
    if (group->getRank() == 0) {
      const auto rows = torch::tensor({int64_t{3}});
      loss = loss + torch::embedding(table, rows, -1, false, true).sum();
    }
    loss.backward();
    auto expected = torch::zeros({5, 2});
    expected[3] += 0.5;
    TORCH_CHECK(table.grad().to_dense().allclose(expected), table.grad());
  });
}

TEST_CASE("a missing sparse gradient is an error", "[sparse][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    auto table = torch::zeros({5, 2}).requires_grad_();
    auto other = torch::ones({1}).requires_grad_();
    Reducer reducer({{"table", table, true}, {"other", other}}, group);
    auto loss = other.sum();
    if (group->getRank() == 0) {
      loss = loss + torch::embedding(
                        table, torch::tensor({int64_t{3}}), -1, false, true)
                        .sum();
    }
    loss.backward();
  });
  CHECK_THAT(errors[1], Catch::Contains("on rank 1: table"));
  CHECK_THAT(errors[0], Catch::Contains("another rank has left"));
}

TEST_CASE("a tied layer may make the gradient of a sparse one dense",
          "[sparse]") {
  run_ranks(2, [](const Group& group) {
    auto table = torch::ones({4, 2}).requires_grad_();
    Reducer reducer({{"table", table, true}}, group);
    for (int step = 0; step < 2; ++step) {
      table.mutable_grad() = torch::Tensor();
      const double slope = group->getRank() + 1.0;
      const auto rows = torch::tensor({int64_t{1}});
      auto loss =
          slope *
          (torch::embedding(table, rows, -1, false, true).sum() + table.sum());
      loss.backward();
      auto expected = torch::full({4, 2}, 1.5);
      expected[1] += 1.5;
      TORCH_CHECK(table.grad().to_dense().allclose(expected), table.grad());
    }
  });
}

TEST_CASE("an unexpected sparse gradient names its parameter",
          "[sparse][errors]") {
  auto table = torch::zeros({5, 2}).requires_grad_();
  Reducer reducer({{"words.weight", table}},
                  c10::make_intrusive<FakeBackend>(2));
  auto loss =
      torch::embedding(table, torch::tensor({int64_t{3}}), -1, false, true)
          .sum();
  CHECK_THROWS_WITH(
      loss.backward(),
      Catch::Contains("words.weight") && Catch::Contains("sparse(true)"));
}

struct NamedNccl : FakeBackend {
  using FakeBackend::FakeBackend;
  const std::string getBackendName() const override { return "nccl"; }
};

TEST_CASE("NCCL cannot reduce sparse gradients", "[sparse][errors]") {
  Bag net(10, true);
  CHECK_THROWS_WITH(
      DistributedDataParallel(net, over(c10::make_intrusive<NamedNccl>(2))),
      Catch::Contains("table.weight") && Catch::Contains("sparse(false)"));
}

TEST_CASE("ranks that disagree on sparse are refused", "[sparse][errors]") {
  const auto errors = try_ranks(2, [](const Group& group) {
    Bag net(10, /*sparse=*/group->getRank() == 1);
    DistributedDataParallel model(net, over(group));
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Catch::Contains("sparse parameter table.weight"));
  }
}

}  // namespace sparse_gradients_test
}  // namespace ddp
