// Rank 1's model has one more output than the other models. Every rank must
// report it, with the parameter's name.
#include <ddp/ddp.h>
#include <torch/nn/modules/linear.h>

namespace {

struct Net : torch::nn::Module {
  explicit Net(int64_t outputs) : fc1(4, 8), fc2(8, outputs) {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  torch::Tensor forward(const torch::Tensor& x) { return fc2(fc1(x)); }
  torch::nn::Linear fc1, fc2;
};

}  // namespace

int main() {
  return ddp::record_errors([] {
    ddp::init_process_group();
    ddp::DistributedDataParallel model(
        std::make_shared<Net>(ddp::rank() == 1 ? 3 : 2));
    ddp::destroy_process_group();
    return 0;
  });
}
