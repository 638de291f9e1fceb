// A model of which the ranks of one host together keep one copy, by
// ddp::FullyShardedDataParallel. The program trains on synthetic data and
// prints the loss and the memory of all ranks. With --ddp each rank keeps a
// copy of its own, by ddp::DistributedDataParallel: the losses are the same,
// and the memory is larger. With a FILE the training saves a checkpoint there,
// or goes on from it, with any number of ranks, with or without --ddp.
//
//   ddprun --nproc-per-node=2 sharded [--ddp] [FILE]
#include <ddp/ddp.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

constexpr int64_t steps = 20;
constexpr int64_t batch_size = 48;  // of all ranks together
constexpr int64_t width = 1536;
constexpr int64_t layers = 4;
constexpr int64_t classes = 10;

struct NetImpl : torch::nn::Module {
  torch::nn::Sequential blocks;
  torch::nn::Linear head{width, classes};

  NetImpl() {
    for (int64_t i = 0; i < layers; ++i) {
      blocks->push_back(
          torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
      blocks->push_back(torch::nn::Linear(width, width));
      blocks->push_back(torch::nn::ReLU());
    }
    register_module("blocks", blocks);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::log_softmax(head->forward(blocks->forward(x)), 1);
  }
};
TORCH_MODULE(Net);

at::Generator generator_of(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

// Draws points around the centre of their class. All ranks draw the same ones.
torch::data::Example<> draw(uint64_t seed, int64_t count) {
  auto of_centres = generator_of(0);
  auto of_points = generator_of(seed);
  const auto centres = 0.3 * torch::randn({classes, width}, of_centres);
  const auto target = torch::randint(classes, {count}, of_points, torch::kLong);
  const auto noise = torch::randn({count, width}, of_points);
  return {centres.index_select(0, target) + noise, target};
}

// Returns the memory of all ranks in MB. A page that several processes map
// counts once in total: the kernel gives each process its part (Pss).
double memory_of_ranks() {
  std::ifstream file("/proc/self/smaps_rollup");
  double kilobytes = 0;
  for (std::string word; file >> word;) {
    if (word == "Pss:") {
      file >> kilobytes;
    }
  }
  const auto mine = torch::tensor(kilobytes / 1000, torch::kDouble);
  return ddp::reduce_tensor(mine, ddp::Reduction::sum).item<double>();
}

// The norm of the whole gradient: of all ranks' parts, or of this rank's copy.
void clip(ddp::FullyShardedDataParallel<NetImpl>& model) {
  model->clip_grad_norm_(1.0);
}
void clip(ddp::DistributedDataParallel<NetImpl>& model) {
  torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
}

template <class Model>
void train(Model model, const std::string& path, double memory_before) {
  torch::optim::AdamW optimizer(model->parameters(), 2e-4);
  ddp::Checkpoint checkpoint(model);
  checkpoint.add("optimizer", optimizer);
  if (!path.empty() && std::filesystem::exists(path)) {
    checkpoint.load(path);
  }
  const bool is_first = ddp::rank() == 0;
  const int64_t begin = checkpoint.step();
  for (int64_t step = begin; step < begin + steps; ++step) {
    const auto batch = draw(static_cast<uint64_t>(step) + 1, batch_size);
    const auto mine = [](const torch::Tensor& rows) {
      return rows.tensor_split(ddp::world_size())[ddp::rank()];
    };
    optimizer.zero_grad();
    const auto loss =
        torch::nll_loss(model->forward(mine(batch.data)), mine(batch.target));
    loss.backward();  // each rank gets the mean of its part of the gradients
    clip(model);
    optimizer.step();
    const auto mean = ddp::reduce_tensor(loss.detach()).template item<double>();
    if (is_first && (step + 1) % 5 == 0) {
      std::cout << "step " << step + 1 << ": loss " << mean << "\n";
    }
  }
  const double memory = memory_of_ranks();
  if (is_first) {  // the other ranks need no forward
    const torch::NoGradGuard no_grad;
    const auto test = draw(1'000'000, 1000);
    const auto hits = model->forward(test.data).argmax(1) == test.target;
    std::cout << "memory of " << ddp::world_size()
              << " ranks: " << memory_before << " MB before the model, "
              << memory << " MB in training\ntest accuracy "
              << hits.to(torch::kDouble).mean().template item<double>() << "\n";
  }
  if (!path.empty()) {
    checkpoint.step(begin + steps).save(path);  // on every rank
  }
}

int main(int argc, char** argv) {
  bool has_copies = false;
  std::string path;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--ddp") {
      has_copies = true;
    } else {
      path = argv[i];
    }
  }
  // Shards need CPU ranks, also on a machine with GPUs.
  ddp::init_process_group(ddp::ProcessGroupOptions().backend("gloo"));
  ddp::seed_everything(0);
  const double memory_before = memory_of_ranks();
  if (has_copies) {
    train(ddp::DistributedDataParallel(Net()), path, memory_before);
  } else {
    // By a function, so that only rank 0 needs memory for a whole net.
    train(ddp::FullyShardedDataParallel<Net>([] { return Net(); }),
          path,
          memory_before);
  }
  ddp::destroy_process_group();
}
