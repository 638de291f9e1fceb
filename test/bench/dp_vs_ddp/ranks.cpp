#include "test/bench/dp_vs_ddp/ranks.h"

#include <ATen/Parallel.h>
#include <ddp/ddp.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <iostream>
#include <thread>

#include "ddp/base/child_process.h"
#include "samples/support/devices.h"
#include "samples/support/text.h"
#include "test/bench/dp_vs_ddp/module_bytes.h"

namespace ddp::bench {

using namespace samples;

namespace {

constexpr std::chrono::minutes kTurnPatience{30};
constexpr std::chrono::milliseconds kLook{10};
constexpr std::chrono::minutes kEndPatience{1};
constexpr int kAnyNumber = -1;  // number of processes of the store
constexpr const char* kParameters = "parameters";

std::string turn_key(int64_t step) {
  return format("turn %ld", step);
}

std::string time_key(int64_t step, int rank) {
  return format("time of step %ld on rank %d", step, rank);
}

std::string report_key(int rank) {
  return format("report of rank %d", rank);
}

// Runs one rank: makes a step whenever the parent process requests one.
void run_rank(const WaysOptions& options, const ForkStore& shared, int rank) {
  at::set_num_threads(1);
  DeviceOptions device;
  device.no_cuda = !has_gpus(options);
  init_process_group(device);
  {
    const auto store = shared.open();
    DistributedWay way(options);
    for (int64_t step = 0; step < options.all_steps(); ++step) {
      store->wait({turn_key(step)}, kTurnPatience);
      put(*store, time_key(step, rank), way.step(step));
    }
    if (rank == 0) {
      store->set(kParameters, parameter_bytes(way.network()));
    }
    put(*store, report_key(rank), way.report());
  }
  ddp::destroy_process_group();
}

// Spawns the ranks from a child process, because this process steps, too, while
// they run.
pid_t start_ranks(const WaysOptions& options, const ForkStore& shared) {
  const pid_t pid = ddp::detail::fork_child();
  if (pid != 0) {
    return pid;
  }
  try {
    ddp::spawn([&](int rank) { run_rank(options, shared, rank); },
               options.replicas);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    ::_exit(1);
  }
  ::_exit(0);
}

}  // namespace

ForkStore::ForkStore() : file_(::memfd_create("fork_store", MFD_CLOEXEC)) {
  TORCH_CHECK(file_ >= 0,
              "Expected memory to share with forked processes, but got: ",
              std::strerror(errno));
}

ForkStore::~ForkStore() {
  ::close(file_);
}

c10::intrusive_ptr<c10d::Store> ForkStore::open() const {
  return c10::make_intrusive<c10d::FileStore>(
      "/proc/self/fd/" + std::to_string(file_), kAnyNumber);
}

Ranks::Ranks(const WaysOptions& options)
    : count_(options.replicas),
      spawner_(start_ranks(options, shared_)),
      store_(shared_.open()) {}

Ranks::~Ranks() {
  if (spawner_ != 0) {
    ::kill(spawner_, SIGKILL);  // the kernel then kills the ranks
    ::waitpid(spawner_, nullptr, 0);
  }
}

// Throws if a rank has failed.
bool Ranks::have_ended() {
  int status = 0;
  if (spawner_ != 0 && ::waitpid(spawner_, &status, WNOHANG) == spawner_) {
    spawner_ = 0;
  }
  TORCH_CHECK(status == 0,
              "Expected the ranks to succeed, but one has failed; its error is "
              "printed above");
  return spawner_ == 0;
}

// Blocks until the key is set. Throws if the ranks end without it.
template <typename T>
T Ranks::take(const std::string& key) {
  while (!store_->check({key})) {
    TORCH_CHECK(!have_ended() || store_->check({key}),
                "Expected the ",
                key,
                ", but the ranks have ended.");
    std::this_thread::sleep_for(kLook);
  }
  return get<T>(*store_, key);
}

double Ranks::step(int64_t number) {
  put(*store_, turn_key(number), number);
  double slowest = 0;
  for (int rank = 0; rank < count_; ++rank) {
    slowest = std::max(slowest, take<double>(time_key(number, rank)));
  }
  return slowest;
}

std::vector<RankReport> Ranks::end() {
  std::vector<RankReport> reports;
  for (int rank = 0; rank < count_; ++rank) {
    reports.push_back(take<RankReport>(report_key(rank)));
  }
  const auto deadline = std::chrono::steady_clock::now() + kEndPatience;
  while (!have_ended()) {
    TORCH_CHECK(std::chrono::steady_clock::now() < deadline,
                "Expected the ranks to end after the last step, but they run "
                "on.");
    std::this_thread::sleep_for(kLook);
  }
  return reports;
}

std::vector<uint8_t> Ranks::parameters() {
  return store_->get(kParameters);
}

}  // namespace ddp::bench
