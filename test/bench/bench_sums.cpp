// One rank of the benchmark of sums: sums a bucket again and again on command,
// so that the arms alternate. sums.py sends the commands.
//
// stdin: lines "shared|gloo BYTES COUNT". Rank 0 answers each with the seconds
// of all sums and the seconds of CPU that a rank used on average.
#include <ctime>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <torch/types.h>

#include "ddp/collectives.h"
#include "ddp/exchanges/shared_memory_all_reduce.h"
#include "ddp/process_group.h"

namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) * 1e-9;
}

std::shared_ptr<ddp::Exchange> exchange_of(const std::string& arm) {
  const auto group = ddp::process_group();
  return arm == "shared" ? std::make_shared<ddp::SharedMemoryAllReduce>(group)
                         : std::make_shared<ddp::AllReduce>(group);
}

/// An all-reduce of one bucket, as a reducer makes it.
class Sum {
 public:
  Sum(const std::string& arm, int64_t bytes)
      : exchange_(exchange_of(arm)),
        payload_(exchange_->allocate(bytes / 4, torch::kFloat)) {}

  void run() {
    const ddp::GradientBucket bucket{0, 1, payload_, {}};
    exchange_->start(bucket);
    exchange_->finish(bucket);
  }

 private:
  std::shared_ptr<ddp::Exchange> exchange_;
  torch::Tensor payload_;
};

}  // namespace

int main() {
  ddp::init_process_group();
  {
    std::map<std::pair<std::string, int64_t>, std::unique_ptr<Sum>> sums;
    std::string arm;
    int64_t bytes = 0;
    int64_t count = 0;
    while (std::cin >> arm >> bytes >> count) {
      auto& sum = sums[{arm, bytes}];
      if (!sum) {
        sum = std::make_unique<Sum>(arm, bytes);
      }
      ddp::barrier();
      const double start = seconds_of(CLOCK_MONOTONIC);
      const double cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
      for (int64_t i = 0; i < count; ++i) {
        sum->run();
      }
      const auto used = ddp::reduce_tensor(
          torch::tensor({seconds_of(CLOCK_MONOTONIC) - start,
                         seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu},
                        torch::kDouble));
      if (ddp::rank() == 0) {
        std::cout << used[0].item<double>() << ' ' << used[1].item<double>()
                  << std::endl;
      }
    }
  }
  ddp::destroy_process_group();
}
