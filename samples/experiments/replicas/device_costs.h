#pragma once

#include <dp/traffic.h>

#include <cstdint>
#include <string>
#include <vector>

namespace samples {

/// A way of data parallel training.
enum class Way { dp, ddp };

/// What a training costs one device, in bytes. What a way of training does not
/// have stays 0.
struct DeviceCosts {
  Way way = Way::dp;
  int64_t device = 0;  ///< the replica's or the rank's number

  // Of one step. DataParallel, between the first device and this one:
  int64_t state = 0;      ///< parameters and buffers, to this one
  int64_t inputs = 0;     ///< to this one
  int64_t outputs = 0;    ///< from this one
  int64_t gradients = 0;  ///< from this one
  // DistributedDataParallel:
  int64_t all_reduce = 0;  ///< what is given to all-reduces
  // Both, from and to other devices:
  int64_t sent = 0;
  int64_t received = 0;

  // What this device holds: all the time,
  int64_t parameters = 0;        ///< and buffers
  int64_t gradient_storage = 0;  ///< at the optimizer's step
  int64_t optimizer_state = 0;
  // and from the forward pass on until the backward pass has used it.
  int64_t activations = 0;
  int64_t results = 0;  ///< what forward returned, and the loss
};

/// Pure: DataParallel's traffic over some steps as costs of one step. The first
/// device has the batch and gets all outputs and gradients; its own stay. As in
/// the traffic, gradients of outputs are not in it.
std::vector<DeviceCosts> dp_costs(
    const std::vector<dp::ReplicaTraffic>& traffic, int64_t steps);

/// Pure: what a ring all-reduce over `ranks` sends from a rank, 2(p - 1)/p of
/// the bytes, to the nearest byte.
int64_t ring_bytes(int64_t bytes, int64_t ranks);

/// Tables for reading: a line for each device.
std::string traffic_table(const std::vector<DeviceCosts>& rows);
std::string memory_table(const std::vector<DeviceCosts>& rows);

/// Writes all numbers, a line for each device.
/// @throws c10::Error when the file cannot be written.
void write_csv(const std::string& file, const std::vector<DeviceCosts>& rows);

}  // namespace samples
