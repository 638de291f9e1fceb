// Ranks that leave while others still train. Each rank is a forked process, so
// this is a separate program, in which no earlier test has started threads.
// Runs over Gloo, and over NCCL if there is a GPU or a stand-in for one.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <fcntl.h>
#include <poll.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/base/file_descriptor.h"
#include "ddp/checkpoint.h"
#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/hook_exchange.h"
#include "ddp/graphed_step.h"
#include "ddp/job/backends.h"
#include "ddp/job/current_job.h"
#include "ddp/job/detail/peer_state.h"
#include "ddp/job/monitored_backend.h"
#include "ddp/job/rendezvous.h"
#include "ddp/job/wait.h"
#include "ddp/optim/fused.h"
#include "ddp/optim/zero_redundancy_optimizer.h"
#include "ddp/process_group.h"
#include "ddp/reducer.h"
#include "test/support/catch.h"
#include "test/support/rank_processes.h"
#include "test/support/temporary_folder.h"

namespace ddp {
namespace departures_test {

using Catch::Contains;
using test::RankEnd;
using test::run_rank_processes;

bool on_gpu(int size) {
  return detail::nccl_device_count() >= size;
}

/// Options with time-outs so long that a test that waits for one of them fails.
ProcessGroupOptions long_timeouts() {
  const int size = std::atoi(std::getenv("WORLD_SIZE"));
  return ProcessGroupOptions()
      .backend(on_gpu(size) ? "nccl" : "gloo")
      .timeout(std::chrono::minutes(10))
      .connect_timeout(std::chrono::minutes(10));
}

/// Longer than the ten seconds within which each rank gets its error.
constexpr std::chrono::seconds kPatience{30};

constexpr int kSteps = 6;
constexpr int kStepsBefore = 2;

/// Two parameters and their training. On a GPU a step is only queued.
class Model {
 public:
  explicit Model(const c10::intrusive_ptr<c10d::Backend>& group,
                 const DistributedDataParallelOptions& options = {})
      : reducer_({{"used", used_, false}, {"other", other_, false}},
                 group,
                 options) {}

  /// Runs one backward pass and an optimizer step.
  void step() {
    pass(/*with_other=*/true);
    const c10::NoGradGuard no_grad;
    for (const auto& parameter : {used_, other_}) {
      parameter.sub_(parameter.grad(), 0.1);
    }
  }

  /// Returns the sum of the used parameter. Blocks until the GPU has finished.
  double value() const { return used_.sum().item<double>(); }

  void pass(bool with_other) {
    auto loss = (used_ * (ddp::rank() + 1)).sum();
    if (with_other) {
      loss = loss + other_.sum();
    }
    loss.backward();
  }

 private:
  static at::Tensor parameter() {
    return at::ones({64}, local_device()).requires_grad_();
  }

  at::Tensor used_ = parameter();
  at::Tensor other_ = parameter();
  Reducer reducer_;
};

using Act = std::function<void(Model& model)>;

/// Trains on all ranks. After two steps the rank `departing` runs `act`
/// instead.
void train(int rank, int departing, const Act& act) {
  init_process_group(long_timeouts());
  Model model(process_group());
  for (int i = 0; i < kSteps; ++i) {
    if (rank == departing && i == kStepsBefore) {
      act(model);
      if (!is_initialized()) {
        return;
      }
    }
    model.step();
  }
  destroy_process_group();
}

void throw_uncaught() noexcept {
  static_cast<void>(std::string().at(0));
}

void return_from_main() {
  std::exit(0);
}

/// The action that replaces a rank's third step, and its expected results.
struct Row {
  std::string name;
  Act act;
  std::string error_of_others;  ///< expected in the other ranks' errors
  std::string own_error;
  int signal = 0;           ///< that ends the rank
  bool just_waits = false;  ///< for the others, in another call
};

const std::string kEnded = "has ended without ddp::destroy_process_group()";

std::vector<Row> rows() {
  return {{"stops early",
           [](Model&) { destroy_process_group(); },
           "in destroy_process_group",
           "in destroy_process_group",
           0,
           /*just_waits=*/true},
          {"stops early, with a word",
           [](Model&) {
             try {
               throw std::runtime_error("the disk\nis full");
             } catch (const std::exception&) {
               destroy_process_group();
             }
           },
           "it says: the disk is full",
           ""},
          {"throws, and nobody catches it",
           [](Model&) { throw_uncaught(); },
           "it says: basic_string::at",
           "",
           SIGABRT},
          {"throws",
           [](Model&) { TORCH_CHECK(false, "no such file"); },
           "has left because of an exception after 2 backward passes; ",
           "no such file"},
          {"returns", [](Model&) { return_from_main(); }, kEnded, ""},
          {"is killed", [](Model&) { ::raise(SIGKILL); }, kEnded, "", SIGKILL}};
}

using Ends = std::vector<RankEnd>;

void check_departure_errors(const Row& row, int size, int departing) {
  INFO("rank " << departing << " of " << size << " " << row.name);
  // On a GPU the host may be some passes ahead.
  const std::string mine = row.just_waits ? "never meet"
                           : on_gpu(size) ? "this rank has begun "
                                          : "this rank has begun 3 backward "
                                            "passes";
  const Ends ends = run_rank_processes(
      size, [&](int rank) { train(rank, departing, row.act); }, kPatience);
  for (int rank = 0; rank < size; ++rank) {
    INFO("rank " << rank << ", exit code " << ends[rank].exit_code);
    CHECK(ends[rank].signal == (rank == departing ? row.signal : 0));
    if (rank != departing) {
      CHECK_THAT(ends[rank].error,
                 Contains("rank " + std::to_string(rank) + ": ") &&
                     Contains("rank " + std::to_string(departing) +
                              (row.just_waits ? "" : " has ")) &&
                     Contains(row.error_of_others) && Contains(mine));
    } else if (row.own_error.empty()) {
      CHECK(ends[rank].error == "");
    } else {
      CHECK_THAT(ends[rank].error, Contains(row.own_error));
    }
  }
}

TEST_CASE("all ranks hear which rank has left, and how", "[departures]") {
  const auto size = GENERATE(2, 3, 4);
  for (const auto& row : rows()) {
    check_departure_errors(row, size, size - 1);
  }
}

TEST_CASE("rank 0, which hosts the store, leaves", "[departures]") {
  for (const auto& row : rows()) {
    check_departure_errors(row, 3, 0);
  }
}

TEST_CASE("Gloo's ranks do not wait for one that has left", "[departures]") {
  const int departing = GENERATE(0, 1);
  const bool has_given_its_address = GENERATE(false, true);
  // The rank's process ends the thread that still connects.
  const auto ends = run_rank_processes(
      1,
      [&](int) {
        const auto keys = c10::make_intrusive<c10d::HashStore>();
        detail::PeerState record;
        const auto connect = [&](int rank) {
          detail::BackendSpec spec;
          spec.peer_failure = [&record]() -> std::string {
            const auto left = record.first_departure({0, 1});
            return left ? describe(*left, 0) : "";
          };
          spec.store = c10::make_intrusive<c10d::PrefixStore>("gloo", keys);
          spec.rank = rank;
          spec.size = 2;
          spec.timeout = spec.connect_timeout = std::chrono::minutes(10);
          return detail::make_gloo_backend(spec);
        };
        if (has_given_its_address) {
          auto other = std::async(std::launch::async, connect, 0);
          // Both backends live until both are connected.
          const auto mine = connect(1);
          other.get();
        }
        record.add_departure(
            {departing, detail::Departure::How::ended, -1, ""});
        connect(1 - departing);
      },
      kPatience);
  CHECK_THAT(ends[0].error,
             Contains("could not be connected: the process of rank " +
                      std::to_string(departing) + " has ended"));
}

TEST_CASE("a rank misses a gradient, and all ranks say which", "[departures]") {
  const auto size = GENERATE(2, 3, 4);
  const bool in_last = GENERATE(false, true);
  const int departing = size - 1;
  INFO("of " << size << (in_last ? ", in the last pass" : ""));
  const Ends ends = run_rank_processes(size, [&](int rank) {
    init_process_group(long_timeouts());
    Model model(process_group());
    for (int i = 0; i < kSteps; ++i) {
      if (i == (in_last ? kSteps - 1 : kStepsBefore)) {
        model.pass(/*with_other=*/rank != departing);
      } else {
        model.step();
      }
    }
    destroy_process_group();
  });
  const auto rank_and_name =
      " on rank " + std::to_string(departing) + ": other";
  for (const auto& end : ends) {
    CHECK(end.signal == 0);
    CHECK_THAT(end.error, Contains(rank_and_name));
  }
}

TEST_CASE("a rank runs a pass more, and all ranks say so", "[departures]") {
  const auto size = GENERATE(2, 3, 4);
  const int departing = size - 1;
  INFO("of " << size);
  const Ends ends = run_rank_processes(size, [&](int rank) {
    train(
        rank, departing, [](Model& model) { model.pass(/*with_other=*/true); });
  });
  for (int rank = 0; rank < size; ++rank) {
    INFO("rank " << rank);
    CHECK(ends[rank].signal == 0);
    if (!on_gpu(size)) {
      CHECK_THAT(ends[rank].error,
                 Contains("in destroy_process_group") &&
                     Contains("rank " + std::to_string(departing) +
                              " in all-reduce of gradient bucket 1 of 1 in "
                              "backward pass 7") &&
                     Contains("ddp::NoSyncGuard"));
    } else {
      CHECK_THAT(
          ends[rank].error,
          Contains("has been started by rank " + std::to_string(departing)));
    }
  }
}

/// An all-reduce that throws in the third pass, on one rank.
class ThrowingStart : public AllReduce {
 public:
  ThrowingStart(c10::intrusive_ptr<c10d::Backend> group, bool throws)
      : AllReduce(std::move(group)), throws_(throws) {}
  void start(const GradientBucket& bucket) override {
    TORCH_CHECK(++passes_ <= kStepsBefore || !throws_, "no luck in start");
    AllReduce::start(bucket);
  }

 private:
  bool throws_;
  int passes_ = 0;
};

/// Counting semaphore between processes: ring() posts, wait_for() waits for
/// several rings.
class ProcessSemaphore {
 public:
  void ring() { detail::check(::write(pipe_.write.get(), "", 1), "write"); }
  void wait_for(int rings) {
    const auto patience = std::chrono::milliseconds(kPatience);
    for (char ring = 0; rings > 0; --rings) {
      pollfd polled{pipe_.read.get(), POLLIN, 0};
      TORCH_CHECK(::poll(&polled, 1, static_cast<int>(patience.count())) > 0,
                  rings,
                  " did not ring");
      detail::check(::read(pipe_.read.get(), &ring, 1), "read");
    }
  }

 private:
  detail::Pipe pipe_ = detail::make_pipe();
};

TEST_CASE("a message to a rank that has ended names it", "[departures]") {
  const auto ends = run_rank_processes(2, [&](int rank) {
    init_process_group(long_timeouts().backend("gloo"));
    barrier();
    if (rank == 1) {
      ::raise(SIGKILL);
    }
    std::vector<at::Tensor> message{at::ones({4})};
    while (true) {
      process_group()->recv(message, 1, /*tag=*/0);
    }
  });
  CHECK_THAT(
      ends[0].error,
      Contains("rank 0: a message failed: ") && Contains("rank 1 " + kEnded));
}

TEST_CASE("a rank dies, while one that lives on does not begin",
          "[departures]") {
  const int size = GENERATE(3, 4);
  const int departing = 1;
  ProcessSemaphore has_begun;
  ProcessSemaphore has_heard;
  const auto ends = run_rank_processes(size, [&](int rank) {
    init_process_group(long_timeouts());
    const auto group = process_group();
    reduce_tensor(at::ones({64}, local_device()));
    if (rank == departing) {
      has_begun.wait_for(size - 2);
      ::raise(SIGKILL);
    } else if (rank == 0) {
      has_heard.wait_for(size - 2);
      return;
    }
    std::vector<at::Tensor> tensors{at::ones({64}, local_device())};
    const auto work = group->allreduce(tensors);
    has_begun.ring();
    const auto ring_at_end = c10::make_scope_exit([&] { has_heard.ring(); });
    detail::wait(work, *group, "an all-reduce");
    tensors[0].sum().item<double>();  // blocks until a GPU has finished
    barrier();
  });
  CHECK(ends[departing].signal == SIGKILL);
  CHECK(ends[0].error == "");
  for (int rank = 2; rank < size; ++rank) {
    INFO("rank " << rank);
    CHECK_THAT(ends[rank].error, Contains("rank 1 has ended"));
  }
}

/// Ends the process after a part of the tensor has arrived.
void die_in_the_middle_of(const at::Tensor& comes) {
  if (comes.is_cpu()) {
    const auto* first = static_cast<volatile float*>(comes.data_ptr());
    while (*first == 0) {
    }
  }
  ::raise(SIGKILL);
}

// Gloo loses track of a send that has begun: its thread would sleep until the
// time-out.
TEST_CASE("a rank dies, while another one sends it a tensor", "[departures]") {
  constexpr int64_t kMoreThanSocketsHold = 16'000'000;
  const std::string how = GENERATE("broadcast", "future", "message");
  CAPTURE(how);
  const auto ends = run_rank_processes(2, [how](int rank) {
    init_process_group(long_timeouts());
    const auto group = process_group();
    barrier();
    std::vector<at::Tensor> tensors{
        at::full({kMoreThanSocketsHold}, 1.0 - rank, local_device())};
    HookExchange exchange([&](const GradientBucket&) -> HookExchange::Result {
      if (how == "message") {
        return rank == 0 ? group->send(tensors, 1, /*tag=*/0)
                         : group->recv(tensors, 0, /*tag=*/0);
      }
      const auto work = group->broadcast(tensors);
      if (how == "future") {
        return work->getFuture();
      }
      return work;
    });
    GradientBucket bucket;
    bucket.count = 1;
    exchange.start(bucket);
    if (rank == 1) {
      die_in_the_middle_of(tensors[0]);
    }
    std::string error = "none";
    try {
      exchange.finish(bucket);
      tensors[0].sum().item<double>();  // blocks until a GPU has finished
      barrier();
    } catch (const c10::Error& thrown) {
      error = thrown.what();
    }
    destroy_process_group();
    TORCH_CHECK(false, error);
  });
  CHECK(ends[1].signal == SIGKILL);
  CHECK_THAT(ends[0].error, Contains("rank 1 has ended"));
}

TEST_CASE("an exchange throws in start, and its rank stays", "[departures]") {
  constexpr int kSize = 3;
  const int departing = GENERATE(0, 1);
  ProcessSemaphore bell;
  const auto ends = run_rank_processes(kSize, [&](int rank) {
    init_process_group(long_timeouts());
    const auto group = process_group();
    Model model(group,
                DistributedDataParallelOptions().exchange(
                    std::make_shared<ThrowingStart>(group, rank == departing)));
    try {
      for (int i = 0; i < kSteps; ++i) {
        model.step();
        model.value();
      }
    } catch (const c10::Error&) {
      rank == departing ? bell.wait_for(kSize - 1) : bell.ring();
      throw;
    }
  });
  for (int rank = 0; rank < kSize; ++rank) {
    INFO("rank " << rank);
    CHECK_THAT(ends[rank].error,
               Contains("no luck in start") &&
                   Contains(rank == departing
                                ? ""
                                : "rank " + std::to_string(departing) +
                                      " has left group world because of an "
                                      "exception"));
  }
}

struct ThrowingSGD : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    TORCH_CHECK(false, "no luck");
  }
};

TEST_CASE("a sharded optimizer throws on one rank, and the rank stays",
          "[departures]") {
  constexpr int kSize = 2;
  const int departing = GENERATE(0, 1);
  ProcessSemaphore bell;
  const auto ends = run_rank_processes(kSize, [&](int rank) {
    init_process_group(long_timeouts());
    std::vector<torch::Tensor> parameters;
    for (int i = 0; i < 4; ++i) {
      parameters.push_back(at::ones({3}, local_device()).requires_grad_());
      parameters.back().mutable_grad() = at::ones({3}, local_device());
    }
    ZeroRedundancyOptimizer optimizer(
        parameters,
        [&](const auto& groups) -> std::unique_ptr<torch::optim::Optimizer> {
          const torch::optim::SGDOptions options(0.1);
          if (rank == departing) {
            return std::make_unique<ThrowingSGD>(groups, options);
          }
          return std::make_unique<torch::optim::SGD>(groups, options);
        });
    try {
      optimizer.step();
      destroy_process_group();  // a GPU's step does not wait for peers
    } catch (const c10::Error&) {
      rank == departing ? bell.wait_for(kSize - 1) : bell.ring();
      throw;
    }
  });
  INFO("on rank " << departing);
  CHECK_THAT(ends[departing].error, Contains("no luck"));
  CHECK_THAT(ends[1 - departing].error,
             Contains("no luck") &&
                 Contains("rank " + std::to_string(departing) +
                          " has left group world because of an exception"));
}

TEST_CASE("a rank leaves while others wait for a hook", "[departures][order]") {
  const bool gives_future = GENERATE(false, true);
  const auto ends = run_rank_processes(3, [&](int rank) {
    init_process_group(long_timeouts());
    const auto group = process_group();
    Model model(
        group,
        DistributedDataParallelOptions().exchange(
            std::make_shared<HookExchange>(
                [&](const GradientBucket& bucket) -> HookExchange::Result {
                  std::vector<at::Tensor> tensors{bucket.payload};
                  const auto work = group->allreduce(tensors);
                  if (gives_future) {
                    return work->getFuture();
                  }
                  return work;
                })));
    for (int i = 0; i < kSteps; ++i) {
      TORCH_CHECK(rank != 1 || i < kStepsBefore, "no such file");
      model.step();
      model.value();
    }
  });
  CHECK_THAT(ends[1].error, Contains("no such file"));
  for (const int rank : {0, 2}) {
    CHECK_THAT(ends[rank].error,
               Contains("rank 1 has left because of an exception") &&
                   Contains("no such file"));
  }
}

TEST_CASE("a host that waits for the GPU is released", "[departures][order]") {
  const auto ends = run_rank_processes(3, [](int rank) {
    init_process_group(long_timeouts());
    const auto group = process_group();
    for (int i = 0; i < kSteps; ++i) {
      if (rank == 1 && i == kStepsBefore) {
        break;
      }
      detail::peer_state_of(*group)->note_pass();
      reduce_tensor(at::ones({64}, local_device())).sum().item<double>();
    }
    destroy_process_group();
  });
  for (const auto& end : ends) {
    CHECK_THAT(end.error,
               Contains("rank 1") && Contains("in destroy_process_group"));
  }
}

TEST_CASE("a rank that leaves a group it shares with some",
          "[departures][order]") {
  const bool completes = GENERATE(true, false);
  const auto ends = run_rank_processes(3, [&](int rank) {
    init_process_group(long_timeouts());
    const auto pair = new_group({2, 0});
    const auto reduce = [](const c10::intrusive_ptr<c10d::Backend>& group) {
      return reduce_tensor(
          at::ones({64}, local_device()), Reduction::sum, group);
    };
    const auto sum = reduce(process_group());
    if (completes) {
      sum.sum().item<double>();
    }
    if (rank == 2) {
      reduce(pair);
    }
    destroy_process_group();
  });
  for (const int rank : {0, 2}) {
    CHECK_THAT(ends[rank].error,
               Contains("rank 0") && Contains("in destroy_process_group"));
  }
  if (completes) {
    CHECK(ends[1].error == "");
  } else {  // a sum on the GPU may be cut off when the other ranks leave
    CHECK(ends[1].error != "still ran");
  }
}

/// Returns the errors of three ranks of which rank 1 makes another call.
Ends call_differently(const Act& act_of_rank_1) {
  const auto train_differently = [&](int rank) {
    init_process_group(long_timeouts());
    Model model(process_group());
    model.step();
    if (rank == 1) {
      act_of_rank_1(model);
    } else {
      model.step();
      model.value();
    }
    destroy_process_group();
  };
  return run_rank_processes(3, train_differently, kPatience);
}

TEST_CASE("ranks wait for each other in different calls", "[departures]") {
  if (on_gpu(3)) {
    return;  // no host waits in a backward pass
  }
  const auto ends = call_differently([](Model&) {
    barrier();  // over Gloo, the gradients' sums are another matter
    reduce_tensor(at::ones({7}));
  });
  for (const auto& end : ends) {
    CHECK_THAT(end.error,
               Contains("all-reduce of gradient bucket") &&
                   Contains("rank 1 in barrier") &&
                   Contains("ddp::NoSyncGuard"));
  }
}

using Call = std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>;

at::Tensor numbers(int64_t count) {
  return at::ones({count}, at::kFloat);
}

Call all_reduce_of(int64_t count) {
  return [=](auto& group) {
    std::vector<at::Tensor> tensors{numbers(count)};
    return group.allreduce(tensors);
  };
}

Call broadcast_of(int64_t count, int root) {
  return [=](auto& group) {
    std::vector<at::Tensor> tensors{numbers(count)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return group.broadcast(tensors, options);
  };
}

Call all_gather_of(int64_t count) {
  return [=](auto& group) {
    std::vector<at::Tensor> inputs{numbers(count)};
    std::vector<std::vector<at::Tensor>> outputs{
        {numbers(count), numbers(count), numbers(count)}};
    return group.allgather(outputs, inputs);
  };
}

Call gather_of(int64_t count) {
  return [=](auto& group) {
    std::vector<at::Tensor> inputs{numbers(count)};
    std::vector<std::vector<at::Tensor>> outputs;
    if (group.getRank() == 0) {
      outputs = {{numbers(count), numbers(count), numbers(count)}};
    }
    return group.gather(outputs, inputs);
  };
}

Call reduce_of(int64_t count) {
  return [=](auto& group) {
    std::vector<at::Tensor> tensors{numbers(count)};
    return group.reduce(tensors);
  };
}

Call all_to_all_of(int64_t count) {
  return [=](auto& group) {
    auto input = numbers(count);
    auto output = numbers(count);
    std::vector<int64_t> even;
    return group.alltoall_base(output, input, even, even);
  };
}

// Gloo pairs the n-th collectives of the ranks. A longer message than expected
// would end the process, on a thread where no code can catch the exception.
TEST_CASE("ranks make collectives of different sizes or kinds",
          "[departures][sizes]") {
  if (on_gpu(3)) {
    return;
  }
  const std::vector<std::pair<Call, Call>> pairs{
      {all_reduce_of(128), all_reduce_of(4160)},
      {all_reduce_of(1), all_reduce_of(int64_t{1} << 22)},
      {broadcast_of(128, 0), broadcast_of(4160, 0)},
      {broadcast_of(128, 0), broadcast_of(128, 1)},
      {all_gather_of(128), all_gather_of(4160)},
      {gather_of(128), gather_of(4160)},
      {reduce_of(128), reduce_of(4160)},
      {all_to_all_of(3), all_to_all_of(3 * 4160)},
      {all_reduce_of(4160), broadcast_of(4160, 0)},
      {all_gather_of(16), all_reduce_of(4160)}};
  const bool is_swapped = GENERATE(false, true);
  const auto ends = test::run_jobs(
      static_cast<int>(pairs.size()),
      3,
      [&](int job, int rank) {
        const auto& [first, second] = pairs[static_cast<size_t>(job)];
        init_process_group(long_timeouts());
        const auto group = process_group();
        barrier();
        const bool is_first = (rank == 1) != is_swapped;
        const auto work = (is_first ? first : second)(*group);
        detail::wait(work, *group, is_first ? "the first" : "the second");
        barrier();
        destroy_process_group();
      },
      kPatience);
  for (size_t pair = 0; pair < pairs.size(); ++pair) {
    INFO("pair " << pair << (is_swapped ? ", swapped" : ""));
    for (const auto& end : ends[pair]) {
      CHECK(end.signal == 0);
      CHECK_THAT(end.error,
                 Contains("All ranks of a group must make the same calls") &&
                     Contains("rank 1") &&
                     (Contains("rank 0") || Contains("ranks 0")));
    }
  }
}

/// Returns whether the group's sum of ones is the number of its ranks.
bool can_sum(const c10::intrusive_ptr<c10d::Backend>& group) {
  const auto sum =
      reduce_tensor(at::ones({64}, local_device()), Reduction::sum, group);
  return sum.eq(group->getSize()).all().item<bool>();
}

TEST_CASE("a failed pass ends its own group alone", "[departures][groups]") {
  constexpr int kSize = 3;
  const int departing = GENERATE(0, 1);
  const bool fails_in_world = GENERATE(true, false);
  const auto ends = run_rank_processes(kSize, [=](int rank) {
    init_process_group(long_timeouts());
    const auto other = new_group({0, 1, 2});
    const auto third = new_group({0, 1, 2});
    const auto failing = fails_in_world ? process_group() : other;
    const auto healthy = fails_in_world ? other : process_group();
    Model model(failing);
    Model lives_on(healthy);
    std::string error = "none";
    try {
      for (int i = 0; i < 3; ++i) {
        lives_on.step();
        model.pass(i != 2 || rank != departing);
        model.value();
      }
      model.pass(true);  // the host of a GPU may be ahead
      model.pass(true);
    } catch (const c10::Error& thrown) {
      error = thrown.what_without_backtrace();
    }
    for (int i = 0; i < 3; ++i) {
      lives_on.step();
      TORCH_CHECK(can_sum(healthy) && can_sum(third));
    }
    std::string at_the_end;
    try {
      destroy_process_group();
    } catch (const c10::Error& thrown) {
      at_the_end = thrown.what_without_backtrace();
    }
    TORCH_CHECK(false, "caught: ", error, ", at the end: ", at_the_end, ".");
  });
  for (int rank = 0; rank < kSize; ++rank) {
    INFO("rank " << rank << ", failing: " << departing);
    CHECK(ends[rank].signal == 0);
    CHECK_THAT(ends[rank].error,
               Contains("caught: rank " + std::to_string(rank)) ||
                   Contains("these got none on rank"));
    CHECK_THAT(ends[rank].error,
               Contains(" on rank " + std::to_string(departing) + ": other") &&
                   Contains("at the end: ."));
    if (rank != departing) {
      CHECK_THAT(
          ends[rank].error,
          Contains("rank " + std::to_string(departing) + " has left group " +
                   (fails_in_world ? "world" : "group_0") +
                   " because of an exception after "));
    }
  }
}

/// How long a rank computes: longer than a wait that ranks compare. The judge
/// of waits sees only that the rank is in no collective, so a sleep will do.
constexpr std::chrono::seconds kComputes{7};

TEST_CASE("a thread waits while its rank computes before any collective",
          "[departures]") {
  if (on_gpu(2)) {
    return;  // NCCL needs one order of the two groups' calls on all ranks
  }
  const auto ends = run_rank_processes(2, [&](int rank) {
    init_process_group(long_timeouts());
    const auto other = new_group({0, 1});
    std::thread thread;
    if (rank == 0) {
      thread = std::thread([&] { barrier(other); });
    }
    if (rank == 0) {
      std::this_thread::sleep_for(kComputes);
    }
    barrier();
    if (rank == 1) {
      barrier(other);
    } else {
      thread.join();
    }
    destroy_process_group();
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
  }
}

TEST_CASE("ranks use two groups in two orders", "[departures]") {
  if (on_gpu(2)) {
    return;  // no host waits for NCCL
  }
  const auto ends = run_rank_processes(2, [&](int rank) {
    init_process_group(long_timeouts());
    const auto reduce = [](const c10::intrusive_ptr<c10d::Backend>& group) {
      reduce_tensor(at::ones({64}), Reduction::sum, group);
    };
    const auto first = process_group();
    const auto second = new_group({0, 1});
    reduce(rank == 0 ? first : second);
    reduce(rank == 0 ? second : first);
  });
  for (const auto& end : ends) {
    CHECK_THAT(end.error, Contains("ranks 0-1 wait in reduce_tensor: "));
  }
}

TEST_CASE("one rank makes a group that the others do not make",
          "[departures]") {
  const auto ends = run_rank_processes(3, [&](int rank) {
    init_process_group(long_timeouts());
    if (rank == 1) {
      new_group({0, 1});
    } else {
      reduce_tensor(at::ones({64}));
    }
  });
  for (const auto& end : ends) {
    CHECK_THAT(end.error,
               Contains("ranks 0, 2 wait in reduce_tensor, "
                        "rank 1 in new_group over ranks 0-1: "));
  }
}

TEST_CASE("rank 0 alone saves a checkpoint", "[departures]") {
  if (on_gpu(2)) {
    return;  // no host waits for NCCL
  }
  const auto ends = run_rank_processes(2, [&](int rank) {
    init_process_group(long_timeouts());
    if (rank == 0) {
      Checkpoint().save("/dev/null/none");
    } else {
      reduce_tensor(at::ones({64}));
    }
  });
  for (const auto& end : ends) {
    CHECK_THAT(end.error,
               Contains("rank 0 waits in all-gather for a checkpoint, "
                        "rank 1 in reduce_tensor: "));
  }
}

TEST_CASE("ranks make a group of different members", "[departures]") {
  const auto ends = run_rank_processes(3, [&](int rank) {
    init_process_group(long_timeouts());
    new_group(rank == 1 ? std::vector{0, 1} : std::vector{0, 1, 2});
  });
  for (const auto& end : ends) {
    CHECK_THAT(end.error,
               Contains("ranks 0, 2 wait in new_group over ranks 0-2, "
                        "rank 1 in new_group over ranks 0-1: "));
  }
}

TEST_CASE("rank 0 dies while others make a group without it", "[departures]") {
  const bool is_away = GENERATE(true, false);
  const auto ends = run_rank_processes(3, [&](int rank) {
    init_process_group(long_timeouts());
    barrier();
    if (rank == 0) {
      store()->wait({"about to make it"}, kPatience);
      ::raise(SIGKILL);
    }
    if (rank == 1) {
      store()->set("about to make it", "");
    } else if (is_away) {
      detail::peer_state_of(*process_group())->first_departure({0}, kPatience);
      TORCH_CHECK(false, "no luck");
    }
    for (;;) {
      new_group({1, 2});
    }
  });
  CHECK_THAT(ends[1].error, Contains("the process of rank 0 has ended"));
  CHECK_THAT(ends[2].error,
             Contains(is_away ? "no luck" : "the process of rank 0 has ended"));
}

TEST_CASE("a rank that computes for long makes no wait an error",
          "[departures]") {
  const auto ends = run_rank_processes(2, [&](int rank) {
    init_process_group(long_timeouts());
    if (rank == 1) {
      std::this_thread::sleep_for(kComputes);
    }
    reduce_tensor(at::ones({64}, local_device()));
    destroy_process_group();
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
  }
}

TEST_CASE("a rank leaves the job in the handler of its exception",
          "[departures]") {
  const auto ends = run_rank_processes(2, [](int) {
    init_process_group(long_timeouts());
    torch::nn::Linear first(4, 4);
    torch::nn::Sequential net(first, torch::nn::Linear(4, 4));
    net->to(local_device());
    DistributedDataParallel model(net);
    first->weight.register_hook([](const at::Tensor& gradient) {
      TORCH_CHECK(false, "no luck");
      return gradient;
    });
    try {
      model->forward(at::ones({2, 4}, local_device())).sum().backward();
    } catch (const c10::Error&) {
      destroy_process_group();
      throw;
    }
  });
  for (const auto& end : ends) {
    CHECK_THAT(end.error, Contains("no luck"));
  }
}

TEST_CASE("a rank leaves the job with an open backward pass", "[departures]") {
  const auto ends = run_rank_processes(2, [&](int rank) {
    init_process_group(long_timeouts());
    torch::nn::Linear first(4, 4);
    torch::nn::Linear second(4, 4);
    torch::nn::Sequential net(first, second);
    net->to(local_device());
    DistributedDataParallel model(net);
    const auto pass = [&] {
      model->forward(at::ones({2, 4}, local_device())).sum().backward();
    };
    pass();
    if (rank == 1) {
      first->weight.register_hook([](const at::Tensor& gradient) {
        TORCH_CHECK(false, "no luck");
        return gradient;
      });
      try {
        pass();
      } catch (const c10::Error&) {
        // The program goes on to its end.
      }
      destroy_process_group();
      return;
    }
    pass();
    model->parameters()[0].grad().sum().item<double>();
    destroy_process_group();
  });
  CHECK_THAT(ends[0].error,
             Contains("rank 1 has left because of an exception") &&
                 Contains("backward() was left by an exception on rank 1"));
  CHECK_THAT(ends[1].error,
             Contains("backward() was left by an exception on rank 1"));
}

TEST_CASE("a rank dies while it closes its groups", "[departures]") {
  const int departing = GENERATE(0, 1);
  const auto ends = run_rank_processes(
      3,
      [departing](int rank) {
        init_process_group(long_timeouts());
        barrier();
        const auto action =
            detail::monitored_backend_of(*process_group())->at_end([&] {
              if (rank == departing) {
                throw_uncaught();
              }
            });
        destroy_process_group();
      },
      kPatience);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(ends[rank].signal == (rank == departing ? SIGABRT : 0));
    CHECK(ends[rank].error == "");
  }
}

TEST_CASE("the program may catch it and go on without the others",
          "[departures]") {
  const auto ends = run_rank_processes(2, [](int rank) {
    try {
      train(rank, 1, [](Model&) { ::_exit(0); });
      TORCH_CHECK(false, "nothing was thrown");
    } catch (const c10::Error& error) {
      TORCH_CHECK(std::string(error.what()).find("rank 1 has ended") !=
                      std::string::npos,
                  error.what());
    }
    destroy_process_group();
    TORCH_CHECK(!is_initialized());
  });
  CHECK(ends[0].error == "");
}

void send_stderr_to(const std::string& path) {
  const detail::FileDescriptor file(detail::check(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600), "open"));
  detail::check(::dup2(file.get(), STDERR_FILENO), "dup2");
}

/// Polls until `condition` holds, at most kPatience. For changes that another
/// thread makes without a notification.
template <class Condition>
void wait_until(const std::string& what, const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    TORCH_CHECK(std::chrono::steady_clock::now() < deadline, what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_CASE("a rank returns from main() while its groups are aborted",
          "[departures]") {
  const int group_count = on_gpu(2) ? 2 : 20;
  for (int round = 0; round < 5; ++round) {
    INFO("round " << round);
    const test::TemporaryFolder folder;
    ProcessSemaphore has_begun;
    ProcessSemaphore is_over;
    const auto ends = run_rank_processes(2, [&](int rank) {
      // Four connections per group make aborts take longer than exit().
      ::setenv("GLOO_SOCKET_IFNAME", "lo,lo,lo,lo", 1);
      init_process_group(long_timeouts());
      std::vector<c10::intrusive_ptr<c10d::Backend>> groups;
      for (int i = 0; i < group_count; ++i) {
        groups.push_back(new_group({0, 1}));
      }
      barrier();
      if (rank == 1) {
        // Its connections stay open.
        has_begun.wait_for(1);
        detail::report_fatal_error("no luck");
        is_over.wait_for(1);
        return;
      }
      send_stderr_to(folder / "stderr");
      std::vector<c10::intrusive_ptr<c10d::Work>> works;
      for (const auto& group : groups) {
        std::vector<at::Tensor> tensors{at::ones({2}, local_device())};
        works.push_back(group->allreduce(tensors));
      }
      has_begun.ring();
      detail::peer_state_of(*groups[0])->first_departure({1}, kPatience);
      for (const auto& group : groups) {
        std::vector<at::Tensor> tensors{at::ones({2}, local_device())};
        try {
          group->allreduce(tensors);
        } catch (const c10::Error&) {
          continue;
        }
        TORCH_CHECK(false, "a collective that misses a rank was taken");
      }
      wait_until("no group was aborted", [&] {
        return !detail::monitored_backend_of(*groups[0])->is_open();
      });
      is_over.ring();
      return_from_main();
    });
    CHECK(ends[0].signal == 0);
    CHECK(ends[0].exit_code == 0);
    CHECK_THAT(test::read_file(folder / "stderr"),
               !Contains("INTERNAL ASSERT") && !Contains("Could not run"));
  }
}

/// Returns the first line of the log that is not of NCCL's monitor. The monitor
/// reports the end of the store, which it asks each second.
std::string first_warning(const std::string& log) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("[W", 0) == 0 &&
        line.find(" TCPStore.cpp:") == std::string::npos &&
        line.find(" ProcessGroupNCCL.cpp:") == std::string::npos) {
      return line;
    }
  }
  return "";
}

TEST_CASE("a rank that comes late to the end says nothing", "[departures]") {
  const test::TemporaryFolder folder;
  const auto ends = run_rank_processes(2, [&](int rank) {
    init_process_group(long_timeouts());
    barrier();
    if (rank == 1) {
      send_stderr_to(folder / "stderr");
      wait_until("rank 0 has not left", [&] {
        return detail::peer_state_of(*process_group())->departure_of(0);
      });
    }
    destroy_process_group();
  });
  CHECK(ends[1].error == "");
  CHECK(ends[1].exit_code == 0);
  const std::string log = test::read_file(folder / "stderr");
  CHECK((on_gpu(2) ? first_warning(log) : log) == "");
}

/// Returns a full pipe. Writes block until it is read.
detail::Pipe full_pipe() {
  auto pipe = detail::make_pipe();
  ::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  while (::write(pipe.write.get(), "x", 1) == 1) {
  }
  ::fcntl(pipe.write.get(), F_SETFL, 0);
  return pipe;
}

TEST_CASE("ranks hear of an exception before its rank flushes stdout",
          "[departures]") {
  const auto pipe = full_pipe();
  const auto ends = run_rank_processes(2, [&](int rank) {
    init_process_group(long_timeouts());
    barrier();
    if (rank == 1) {
      ::dup2(pipe.write.get(), STDOUT_FILENO);
      std::setvbuf(stdout, nullptr, _IOFBF, BUFSIZ);
      std::fputs("the last words", stdout);
      throw_uncaught();
    }
    const auto record = detail::peer_state_of(*process_group());
    const auto left = record->first_departure({1}, kPatience);
    std::vector<char> read(1 << 16);
    detail::check(
        static_cast<int>(::read(pipe.read.get(), read.data(), read.size())),
        "read");
    TORCH_CHECK(left, "nothing was heard");
    TORCH_CHECK(left->text.find("basic_string::at") != std::string::npos,
                left->text);
  });
  CHECK(ends[0].error == "");
  CHECK(ends[1].signal == SIGABRT);
}

/// Rings `bell` once this rank has started its next collective.
std::future<void> ring_at_next_start(ProcessSemaphore& bell) {
  const auto group =
      c10::dynamic_intrusive_pointer_cast<detail::MonitoredBackend>(
          process_group());
  return std::async(std::launch::async,
                    [group, &bell, before = group->started()] {
                      while (group->started() == before) {
                        std::this_thread::yield();
                      }
                      bell.ring();
                    });
}

// On a GPU the received data is garbage in this case.
TEST_CASE("a rank leaves while others read received data",
          "[departures][order]") {
  const bool reads_plan = GENERATE(true, false);
  INFO((reads_plan ? "a plan of buckets" : "texts"));
  ProcessSemaphore has_begun;
  const auto ends = run_rank_processes(3, [&](int rank) {
    init_process_group(long_timeouts());
    Model model(process_group());
    if (rank == 1) {
      has_begun.wait_for(2);
    } else if (const auto rings = ring_at_next_start(has_begun); reads_plan) {
      model.step();
      model.value();
    } else {
      all_gather_text("from rank " + std::to_string(rank));
    }
    destroy_process_group();
  });
  for (const int rank : {0, 2}) {
    CHECK(ends[rank].signal == 0);
    CHECK_THAT(ends[rank].error, Contains("rank 1 in destroy_process_group"));
  }
}

bool has_gpus(int count) {
  if (!on_gpu(count)) {
    WARN("skipped: it takes " << count << " GPUs");
  }
  return on_gpu(count);
}

TEST_CASE("a module on the wrong device gets advice on every rank",
          "[departures]") {
  if (!has_gpus(2)) {
    return;
  }
  const bool on_cpu = GENERATE(true, false);
  INFO((on_cpu ? "on the CPU" : "on cuda:0"));
  const auto ends = run_rank_processes(2, [&](int) {
    init_process_group(long_timeouts());
    torch::nn::Linear net(2, 2);
    if (!on_cpu) {
      net->to(c10::Device(c10::kCUDA, 0));
    }
    const DistributedDataParallel model(net);
  });
  for (const auto& end : ends) {
    CHECK_THAT(end.error,
               Contains("Expected") && Contains("ddp::local_device()"));
  }
}

TEST_CASE("ranks connect a second GPU within connect_timeout", "[departures]") {
  if (!has_gpus(3)) {
    return;
  }
  ProcessSemaphore is_over;
  const auto ends = run_rank_processes(2, [&](int rank) {
    init_process_group(
        long_timeouts().connect_timeout(std::chrono::seconds(8)));
    if (rank == 1) {
      is_over.wait_for(1);
      return;
    }
    const auto ring_at_end = c10::make_scope_exit([&] { is_over.ring(); });
    detail::monitored_backend_of(*process_group())
        ->connect(c10::Device(c10::kCUDA, 2));
  });
  CHECK_THAT(ends[0].error,
             Contains("NCCL to connect the GPUs of 2 ranks within 8 s"));
}

TEST_CASE("job after job at one address, with groups that are kept",
          "[departures]") {
  const auto ends = run_rank_processes(3, [](int rank) {
    std::vector<c10::intrusive_ptr<c10d::Backend>> kept;
    for (int job = 0; job < 4; ++job) {
      init_process_group(long_timeouts());
      kept.push_back(process_group());
      kept.push_back(new_group({0, 1, 2}));
      const auto sum = reduce_tensor(at::full({3}, rank + 1.0, local_device()),
                                     Reduction::sum,
                                     kept.back());
      TORCH_CHECK(sum.eq(6).all().item<bool>(), sum);
      destroy_process_group();
    }
    for (const auto& group : kept) {
      std::vector<at::Tensor> tensors{at::ones({3})};
      try {
        group->allreduce(tensors);
      } catch (const c10::Error& error) {
        TORCH_CHECK(std::string(error.what()).find("has been destroyed") !=
                        std::string::npos,
                    error.what());
        continue;
      }
      TORCH_CHECK(false, "a group of a job that has ended takes a collective");
    }
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
  }
}

TEST_CASE("job after job on a store that stays", "[departures]") {
  const auto ends = run_rank_processes(2, [](int rank) {
    const auto store =
        detail::open_store(WorkerEnv::read(), std::chrono::seconds(30));
    for (int job = 0; job < 3; ++job) {
      init_process_group(long_timeouts().store(store));
      const auto sum = reduce_tensor(at::full({3}, rank + 1.0, local_device()),
                                     Reduction::sum);
      TORCH_CHECK(sum.eq(3).all().item<bool>(), sum);
      destroy_process_group();
    }
    store->add("done", 1);  // rank 0 hosts the store until all are done
    while (rank == 0 && store->add("done", 0) < 2) {
      ::usleep(10'000);
    }
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
  }
}

/// Trains by a recorded step. Rank 1 is killed while a replay of its own, and
/// of rank 0, is queued or runs.
TEST_CASE("a rank is killed while ranks replay a recorded step",
          "[departures][order]") {
  if (!on_gpu(2)) {
    return;
  }
  const bool waits = GENERATE(false, true);  // for the loss
  INFO("waits " << waits);
  const auto ends = run_rank_processes(
      2,
      [waits](int rank) {
        init_process_group(long_timeouts());
        torch::nn::Linear net(8, 4);
        net->to(local_device());
        DistributedDataParallel model(net);
        FusedSGD optimizer(model->parameters(), 0.125);
        GraphedStep step(model, optimizer, [&](const auto& in) {
          return model(in[0]).sum();
        });
        const auto rows = at::ones({4, 8}, local_device());
        for (int i = 0;; ++i) {
          const auto loss = step({rows});
          if (rank == 1 && i == 8) {
            TORCH_CHECK(step.is_recorded());
            ::raise(SIGKILL);
          }
          // Rank 1 leaves when rank 0 replays, too.
          if (waits || (rank == 1 && i == 7)) {
            loss.item<double>();
          } else {
            std::this_thread::yield();
          }
        }
      },
      std::chrono::seconds(15));
  CHECK(ends[1].signal == SIGKILL);
  CHECK(ends[0].signal == 0);
  CHECK_THAT(ends[0].error,
             Contains("rank 0: a recorded step failed: the process of rank 1 "
                      "has ended"));
}

// Needs FAKE_GPU_FAULT=never_join:1: rank 1 never completes NCCL's set-up,
// until SIGALRM ends it.
TEST_CASE("a rank dies while NCCL connects the others", "[.never_join]") {
  const auto ends = run_rank_processes(3, [](int rank) {
    if (rank == 1) {
      ::alarm(3);
    }
    init_process_group(long_timeouts());
  });
  CHECK(ends[1].signal == SIGALRM);
  for (const int rank : {0, 2}) {
    CHECK_THAT(ends[rank].error,
               Contains("GPUs could not be connected: the process of rank 1 "
                        "has ended"));
  }
}

TEST_CASE("a rank hangs while NCCL connects the others", "[.never_join]") {
  const auto ends = run_rank_processes(2, [](int rank) {
    if (rank == 1) {
      ::alarm(15);
    }
    init_process_group(
        ProcessGroupOptions().connect_timeout(std::chrono::seconds(6)));
  });
  CHECK_THAT(ends[0].error,
             Contains("NCCL to connect the GPUs of 2 ranks within 6 s"));
}

// Needs FAKE_GPU_FAULT=error:1:2.
TEST_CASE("an error that NCCL finds can be caught", "[.nccl_error]") {
  const auto ends = run_rank_processes(2, [](int) {
    init_process_group(long_timeouts());
    std::string error = "nothing was thrown";
    try {
      for (int i = 0; i < kSteps; ++i) {
        reduce_tensor(at::ones({64}, local_device())).sum().item<double>();
      }
    } catch (const c10::Error& thrown) {
      error = thrown.what_without_backtrace();
    }
    destroy_process_group();
    TORCH_CHECK(false, error);
  });
  for (const auto& end : ends) {
    CHECK(end.signal == 0);
  }
  CHECK_THAT(ends[0].error, Contains("rank 1 has left by"));
  CHECK_THAT(ends[1].error, Contains("LibTorch has aborted the group"));
}

/// Two ranks leave while a collective is queued. FAKE_GPU_FAULT=KIND:1:2 tells
/// the stand-in for NCCL how this collective ends.
Ends leave_with_fault_queued(std::chrono::milliseconds timeout) {
  return run_rank_processes(2, [timeout](int) {
    init_process_group(long_timeouts().timeout(timeout));
    reduce_tensor(at::ones({64}, local_device())).sum().item<double>();
    reduce_tensor(at::ones({64}, local_device()));
    destroy_process_group();
  });
}

TEST_CASE("a rank dies after its goodbye with work queued", "[.nccl_die]") {
  const auto ends = leave_with_fault_queued(std::chrono::minutes(10));
  CHECK(ends[1].signal == SIGKILL);
  CHECK(ends[0].signal == 0);
  CHECK_THAT(ends[0].error, Contains("the process of rank 1 has ended"));
}

TEST_CASE("a stalled last operation ends by the time-out", "[.nccl_stall]") {
  const auto ends = leave_with_fault_queued(std::chrono::seconds(3));
  for (const auto& end : ends) {
    CHECK(end.signal == 0);
    CHECK_THAT(end.error, Contains("a collective failed: "));
  }
}

/// Longer than LibTorch's monitor would wait before it ends the processes, with
/// TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=8.
constexpr std::chrono::seconds kMonitorEnds{13};

TEST_CASE("a job goes on after a time-out", "[.nccl_survived]") {
  const auto ends = run_rank_processes(2, [](int rank) {
    init_process_group(long_timeouts().timeout(std::chrono::seconds(3)));
    const auto sum = [](const c10::intrusive_ptr<c10d::Backend>& group) {
      return reduce_tensor(
                 at::ones({64}, local_device()), Reduction::sum, group)
          .sum()
          .item<double>();
    };
    TORCH_CHECK(sum(process_group()) == 128);
    if (rank == 0) {
      std::string error;
      try {
        for (int i = 0; i < 3; ++i) {
          sum(process_group());
        }
      } catch (const c10::Error& thrown) {
        error = thrown.what_without_backtrace();
      }
      TORCH_CHECK(!error.empty(), "no time-out");
      store()->set("timed out", "yes");
    } else {
      store()->wait({"timed out"}, std::chrono::minutes(1));
    }
    const auto again = new_group({0, 1});
    TORCH_CHECK(sum(again) == 128);
    std::this_thread::sleep_for(kMonitorEnds);
    TORCH_CHECK(sum(again) == 128);
    try {
      destroy_process_group();
    } catch (const c10::Error&) {
      // The world's error; of interest is how the process ends.
    }
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
    CHECK(end.signal == 0);
    CHECK(end.exit_code == 0);
  }
}

/// Sets the key by which LibTorch asks the ranks of a job to dump their traces.
/// An error sets it, and torchrun's store keeps it for the next attempts.
void set_key_of_earlier_error() {
  auto base = store();
  while (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(base.get())) {
    base = prefixed->getUnderlyingNonPrefixStore();
  }
  base->set("exception_dump", "1");
}

TEST_CASE("a pair goes on after an error of another one", "[.nccl_survived]") {
  const auto ends = run_rank_processes(4, [](int rank) {
    init_process_group(long_timeouts().timeout(std::chrono::seconds(3)));
    if (rank == 0) {
      set_key_of_earlier_error();
    }
    const auto first = new_group({0, 1});
    const auto second = new_group({2, 3});
    const auto sum = [](const c10::intrusive_ptr<c10d::Backend>& group) {
      return reduce_tensor(
                 at::ones({64}, local_device()), Reduction::sum, group)
          .sum()
          .item<double>();
    };
    TORCH_CHECK(sum(rank < 2 ? first : second) == 128);
    if (rank == 2) {
      std::string error;
      try {
        for (int i = 0; i < 3; ++i) {
          sum(second);
        }
      } catch (const c10::Error& thrown) {
        error = thrown.what_without_backtrace();
      }
      TORCH_CHECK(!error.empty(), "no time-out");
      store()->set("timed out", "yes");
    } else {
      store()->wait({"timed out"}, std::chrono::minutes(1));
    }
    std::this_thread::sleep_for(kMonitorEnds);
    if (rank < 2) {
      TORCH_CHECK(sum(first) == 128);
    }
    try {
      destroy_process_group();
    } catch (const c10::Error&) {
      // The error of ranks 2 and 3; of interest is how the process ends.
    }
  });
  for (const auto& end : ends) {
    CHECK(end.error == "");
    CHECK(end.signal == 0);
    CHECK(end.exit_code == 0);
  }
}

}  // namespace departures_test
}  // namespace ddp
