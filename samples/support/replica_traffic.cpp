#include "samples/support/replica_traffic.h"

namespace samples {

dp::ReplicaTraffic sum_of_others(
    const std::vector<dp::ReplicaTraffic>& traffic) {
  dp::ReplicaTraffic sum{traffic.empty() ? torch::Device(torch::kCPU)
                                         : traffic.front().device};
  for (size_t i = 1; i < traffic.size(); ++i) {
    sum.state_bytes += traffic[i].state_bytes;
    sum.input_bytes += traffic[i].input_bytes;
    sum.output_bytes += traffic[i].output_bytes;
    sum.gradient_bytes += traffic[i].gradient_bytes;
  }
  return sum;
}

}  // namespace samples
