#include <torch/cuda.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <c10/cuda/CUDAStream.h>

#include <dlfcn.h>

#include <cstdint>

#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/job/state_sync.h"
#include "ddp/job/text_collectives.h"
#include "ddp/job/wait.h"
#include "ddp/process_group.h"
#include "test/support/catch.h"
#include "test/support/done_work.h"
#include "test/support/fake_backend.h"
#include "test/support/forwarding_backend.h"

namespace {
/// Replaces LibTorch's version of NCCL if it is not 0.
std::uint64_t other_version = 0;
}  // namespace

/// Overrides LibTorch's own function of this name.
namespace torch::cuda::nccl {
std::uint64_t version();
std::uint64_t version() {
  const auto real = reinterpret_cast<std::uint64_t (*)()>(
      ::dlsym(RTLD_NEXT, "_ZN5torch4cuda4nccl7versionEv"));
  return other_version != 0 ? other_version : real();
}
}  // namespace torch::cuda::nccl

// Tests with one rank over NCCL. A collective of one rank is a copy on the
// device, but work, streams and events are NCCL's.
namespace ddp {
namespace nccl_test {

/// The process group of one test.
class Job {
 public:
  Job() {
    init_process_group(
        ProcessGroupOptions().backend("nccl").worker_env(WorkerEnv()));
  }
  ~Job() { destroy_process_group(); }
};

torch::Tensor leaf(at::IntArrayRef sizes) {
  return torch::ones(sizes, local_device()).requires_grad_();
}

TEST_CASE("one rank over NCCL", "[gpu]") {
  const Job job;
  CHECK(process_group()->getBackendName() == "nccl");
  CHECK(local_device() == torch::Device(torch::kCUDA, 0));
  barrier();
  CHECK(new_group({0})->getSize() == 1);
  const auto mean = reduce_tensor(torch::full({3}, 2.5, local_device()));
  CHECK(mean.is_cuda());
  CHECK(mean.cpu().equal(torch::full({3}, 2.5)));
}

// NCCL's own wait only makes a stream wait and does not report an abort.
TEST_CASE("a wait for work queued before an abort is an error", "[gpu]") {
  const Job job;
  const auto group = process_group();
  std::vector<torch::Tensor> tensors{torch::ones({3}, local_device())};
  const auto work = group->allreduce(tensors);
  group->abort();
  CHECK_THROWS_WITH(
      detail::wait(work, *group, "the sum"),
      Catch::Contains("the sum failed: the program has aborted the group"));
}

// NCCL's backend ignores the device of the options.
TEST_CASE("a barrier uses the GPU of its rank", "[gpu]") {
  struct Asked : test::ForwardingBackend {
    using ForwardingBackend::ForwardingBackend;
    Work barrier(const c10d::BarrierOptions& options) override {
      ids = options.device_ids;
      return c10::make_intrusive<test::DoneWork>(at::Tensor());
    }
    std::vector<int64_t> ids;
  };
  const Job job;
  // Two ranks, so that a barrier is called.
  const auto asked = c10::make_intrusive<Asked>(
      c10::make_intrusive<test::FakeBackend>(/*size=*/2));
  barrier(asked);
  CHECK(asked->ids == std::vector<int64_t>{local_device().index()});
}

TEST_CASE("a GPU that is not there", "[gpu]") {
  WorkerEnv env;
  env.local_rank = torch::cuda::device_count();
  CHECK_THROWS_WITH(
      init_process_group(ProcessGroupOptions().backend("nccl").worker_env(env)),
      Catch::Contains("Expected a GPU for LOCAL_RANK="));
}

TEST_CASE("an nccl.h that is not LibTorch's", "[gpu]") {
  struct Guard {
    Guard() { other_version = (2ULL << 32) | (99ULL << 16); }
    ~Guard() { other_version = 0; }
  } const guard;
  CHECK_THROWS_WITH(Job(), Catch::Contains("nccl.h of NCCL 2.99"));
  CHECK_FALSE(is_initialized());
}

TEST_CASE("texts and state travel over NCCL", "[gpu]") {
  const Job job;
  const auto group = process_group();
  CHECK(detail::all_gather_text(*group, local_device(), "one", "a test") ==
        std::vector<std::string>{"one"});
  CHECK(detail::broadcast_text(*group, local_device(), "two", "a test") ==
        "two");
  auto state = torch::full({4}, 3.0, local_device());
  detail::broadcast_from(0, *group, {state});
  CHECK(state.cpu().equal(torch::full({4}, 3.0)));
}

TEST_CASE("the reducer on a stream of the user's", "[gpu]") {
  const Job job;
  const bool as_view = GENERATE(false, true);
  auto a = leaf({1000});
  auto b = leaf({300, 40});
  auto c = torch::ones({7}, torch::dtype(torch::kHalf).device(local_device()))
               .requires_grad_();
  Reducer reducer({{"a", a}, {"b", b}, {"c", c}},
                  process_group(),
                  DistributedDataParallelOptions()
                      .gradient_as_bucket_view(as_view)
                      .first_bucket_cap_mb(0.001));
  torch::cuda::synchronize();  // the leaves were created on the default stream
  const c10::StreamGuard guard(
      c10::cuda::getStreamFromPool(false, local_device().index()).unwrap());
  torch::optim::SGD optimizer({a, b, c}, 0.5);
  for (int step = 1; step <= 5; ++step) {
    optimizer.zero_grad();
    auto loss = step * (a.sum() + 2 * b.sum()) + 3 * c.to(torch::kFloat).sum();
    loss.backward();
    CHECK(a.grad().cpu().eq(step).all().item<bool>());
    CHECK(b.grad().cpu().eq(2 * step).all().item<bool>());
    CHECK(c.grad().cpu().eq(3).all().item<bool>());
    optimizer.step();
  }
  CHECK(a.detach().cpu().eq(1 - 0.5 * 15).all().item<bool>());
}

TEST_CASE("a missing gradient on a GPU", "[gpu]") {
  const Job job;
  auto used = leaf({3});
  auto other = leaf({3});
  Reducer reducer({{"used", used}, {"other", other}}, process_group());
  auto loss = used.sum();
  CHECK_THROWS_WITH(loss.backward(),
                    Catch::Contains("got none on rank 0: other;"));
}

TEST_CASE("DistributedDataParallel trains on a GPU as the module does",
          "[gpu]") {
  const Job job;
  torch::manual_seed(3);
  torch::nn::Sequential plain(torch::nn::Conv2d(1, 4, 3),
                              torch::nn::BatchNorm2d(4),
                              torch::nn::Flatten(),
                              torch::nn::Linear(4 * 36, 3));
  plain->to(local_device());
  auto wrapped =
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(plain->clone());
  DistributedDataParallel model(wrapped);
  torch::optim::Adam one(plain->parameters());
  torch::optim::Adam two(model->parameters());
  for (int step = 0; step < 5; ++step) {
    const auto batch = torch::randn({8, 1, 8, 8}, local_device());
    one.zero_grad();
    plain->forward(batch).pow(2).mean().backward();
    one.step();
    two.zero_grad();
    model->forward(batch).pow(2).mean().backward();
    two.step();
  }
  for (const auto& item : plain->named_parameters()) {
    CHECK(wrapped->named_parameters()[item.key()].allclose(
        item.value(), 1e-4, 1e-5));
  }
}

}  // namespace nccl_test
}  // namespace ddp
