#include "samples/support/replica_traffic.h"

#include "samples/support/text.h"

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

std::string to_table(const std::vector<dp::ReplicaTraffic>& traffic) {
  if (traffic.empty()) {
    return "";
  }
  auto text = format("%-20s%15s%15s%15s%15s\n",
                     "bytes",
                     "state to",
                     "inputs to",
                     "outputs from",
                     "gradients from");
  for (size_t i = 0; i < traffic.size(); ++i) {
    const auto& row = traffic[i];
    text +=
        format("%-20s%15ld%15ld%15ld%15ld\n",
               format("replica %zu, %s", i, row.device.str().c_str()).c_str(),
               row.state_bytes,
               row.input_bytes,
               row.output_bytes,
               row.gradient_bytes);
  }
  return text;
}

}  // namespace samples
