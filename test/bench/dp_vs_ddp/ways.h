#pragma once

#include <ddp/distributed_data_parallel.h>
#include <dp/data_parallel.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "samples/support/models.h"
#include "test/bench/dp_vs_ddp/device_costs.h"
#include "test/bench/dp_vs_ddp/digits_training.h"
#include "test/support/counting_backend.h"

namespace ddp::bench {

/// Number of steps before the measured ones. In the first, replicas create
/// their threads and ranks their buckets; in the second, memory is counted.
inline constexpr int64_t kWarmUps = 2;

/// Options of dp_vs_ddp.
struct WaysOptions {
  int replicas = 4;
  int64_t steps = 20;
  bool no_cuda = false;
  std::string csv;
  DigitsTrainingOptions training;

  int64_t all_steps() const { return kWarmUps + steps; }
};

/// Returns true if each replica and each rank has its own GPU.
bool has_gpus(const WaysOptions& options);

/// The training in one process, with one replica per device.
class DataParallelWay {
 public:
  DataParallelWay(const WaysOptions& options,
                  const std::vector<torch::Device>& devices);
  DataParallelWay(const DataParallelWay&) = delete;
  DataParallelWay& operator=(const DataParallelWay&) = delete;

  /// Runs the step with this number. Returns its duration in seconds.
  double step(int64_t number);
  /// Returns the costs of a measured step, by replica.
  std::vector<DeviceCosts> costs() const;
  const samples::Classifier& network() const { return *training_.network(); }

 private:
  std::shared_ptr<samples::Classifier> add_replica();

  int64_t steps_;
  DigitsTraining training_;
  std::vector<std::shared_ptr<samples::Classifier>> replicas_;
  dp::DataParallel<samples::Classifier> model_;
};

/// Report of a rank at the end. Bytes are per step unless noted otherwise.
struct RankReport {
  DeviceCosts costs;
  int64_t sent_by_sockets;
  int64_t broadcast;
  int64_t broadcast_before;  ///< total before the measured steps
  uint64_t parameter_hash;
};

/// The training in one of several processes.
class DistributedWay {
 public:
  explicit DistributedWay(const WaysOptions& options);

  double step(int64_t number);
  RankReport report();
  const samples::Classifier& network() const { return *training_.network(); }

 private:
  WaysOptions options_;
  DigitsTraining training_;
  c10::intrusive_ptr<ddp::test::CountingBackend> counted_;
  DistributedDataParallel<samples::Classifier> model_;
  int64_t broadcast_before_ = 0;
  int64_t sent_by_sockets_ = 0;
};

}  // namespace ddp::bench
