// The smallest job: every rank prints its rank and device, and the ranks sum
// their numbers once. Exits with 1 if the sum is wrong.
//
//   ddprun --nproc-per-node=4 hello
#include <ddp/ddp.h>
#include <torch/types.h>

#include <iostream>
#include <sstream>

namespace {

void hello() {
  ddp::init_process_group();
  const int64_t rank = ddp::rank();
  const int64_t world = ddp::world_size();
  const auto device = ddp::local_device();

  const auto own = torch::full({1000}, rank + 1, torch::kInt64).to(device);
  const auto sum = ddp::reduce_tensor(own, ddp::Reduction::sum);

  const int64_t expected = world * (world + 1) / 2;
  TORCH_CHECK(torch::all(sum == expected).item<bool>(),
              "Expected 1 + ... + ",
              world,
              " = ",
              expected,
              " from the all-reduce, but got ",
              sum.min().item<int64_t>(),
              " to ",
              sum.max().item<int64_t>(),
              ".");

  // One write per line, because the ranks share a terminal.
  std::ostringstream line;
  line << "hello from rank " << rank << " of " << world << " (local rank "
       << ddp::local_rank() << ", " << device << ", "
       << ddp::process_group()->getBackendName()
       << "): the ranks' numbers add up to " << expected << "\n";
  std::cout << line.str() << std::flush;
  ddp::destroy_process_group();
}

}  // namespace

int main() {
  return ddp::record_errors([] {
    hello();
    return 0;
  });
}
