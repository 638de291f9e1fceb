#pragma once

#include <dp/data_parallel.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ddp::bench {

/// The kind of data parallel training.
enum class Way { dp, ddp };

/// Costs of a training on one device, in bytes. Fields that do not apply to the
/// kind of training are 0.
struct DeviceCosts {
  Way way = Way::dp;
  int64_t device = 0;  ///< index of the replica or rank

  // Traffic of one step. DataParallel, between the first device and this one:
  int64_t state = 0;      ///< parameters and buffers, to this device
  int64_t inputs = 0;     ///< to this device
  int64_t outputs = 0;    ///< from this device
  int64_t gradients = 0;  ///< from this device
  // DistributedDataParallel:
  int64_t all_reduce = 0;  ///< bytes passed to all-reduces
  // Both kinds, to and from all other devices:
  int64_t sent = 0;
  int64_t received = 0;

  // Memory of this device, permanently:
  int64_t parameters = 0;        ///< parameters and buffers
  int64_t gradient_storage = 0;  ///< during the optimizer's step
  int64_t optimizer_state = 0;
  // from the forward pass until the backward pass has used it:
  int64_t activations = 0;
  int64_t results = 0;  ///< results of forward, and the loss
};

/// Converts DataParallel's traffic over `steps` steps to costs of one step. The
/// first device holds the batch and receives all outputs and gradients; its own
/// data are not transferred. Gradients of outputs are not included. Pure.
std::vector<DeviceCosts> dp_costs(
    const std::vector<dp::ReplicaTraffic>& traffic, int64_t steps);

/// Returns the bytes that each rank sends in a ring all-reduce over `ranks`
/// ranks: 2(p - 1)/p of the data, rounded to bytes. Pure.
int64_t ring_bytes(int64_t bytes, int64_t ranks);

/// Return readable tables with one line per device.
std::string traffic_table(const std::vector<DeviceCosts>& rows);
std::string memory_table(const std::vector<DeviceCosts>& rows);

/// Writes all numbers as CSV, one line per device.
/// @throws c10::Error if the file cannot be written.
void write_csv(const std::string& file, const std::vector<DeviceCosts>& rows);

}  // namespace ddp::bench
