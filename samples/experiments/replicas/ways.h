#pragma once

#include <ddp/traffic.h>
#include <dp/data_parallel.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "samples/experiments/replicas/device_costs.h"
#include "samples/experiments/replicas/digits_training.h"
#include "samples/support/evaluate.h"

namespace samples {

/// Steps before those that are measured: in the first, replicas get their
/// threads and ranks their buckets; in the second, memory is counted.
inline constexpr int64_t kWarmUps = 2;

/// Of dp_vs_ddp.
struct WaysOptions {
  int replicas = 4;
  int64_t steps = 20;
  bool no_cuda = false;
  std::string csv;
  DigitsTrainingOptions training;

  int64_t all_steps() const { return kWarmUps + steps; }
};

/// Whether each replica and each rank gets a GPU.
bool has_gpus(const WaysOptions& options);

/// The training in one process, a replica on each device.
class DataParallelWay {
 public:
  DataParallelWay(const WaysOptions& options,
                  const std::vector<torch::Device>& devices);
  DataParallelWay(const DataParallelWay&) = delete;
  DataParallelWay& operator=(const DataParallelWay&) = delete;

  /// The step with this number; returns the seconds.
  double step(int64_t number);
  /// Of a measured step, by replica.
  std::vector<DeviceCosts> costs() const;
  const Classifier& network() const { return *training_.network(); }

 private:
  std::shared_ptr<Classifier> add_replica();

  int64_t steps_;
  DigitsTraining training_;
  std::vector<std::shared_ptr<Classifier>> replicas_;
  dp::DataParallel<Classifier> model_;
};

/// What a rank tells in the end; the bytes are those of one step, if not said
/// otherwise.
struct RankReport {
  DeviceCosts costs;
  int64_t sent_by_sockets;
  int64_t broadcast;
  int64_t broadcast_before;  ///< of all that came before the measured steps
  uint64_t parameter_hash;
};

/// The training in one of as many processes.
class DistributedWay {
 public:
  explicit DistributedWay(const WaysOptions& options);

  double step(int64_t number);
  RankReport report();
  const Classifier& network() const { return *training_.network(); }

 private:
  WaysOptions options_;
  DigitsTraining training_;
  c10::intrusive_ptr<ddp::CountingBackend> counted_;
  ParallelClassifier model_;
  int64_t broadcast_before_ = 0;
  int64_t sent_by_sockets_ = 0;
};

}  // namespace samples
