// One rank of the parity test: trains a small CNN from given weights on given
// batches, once for each variant. ddp_digits.py does the same with PyTorch's
// DDP.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include "ddp/ddp.h"
#include "test/parity/parity.h"

namespace parity {
namespace ddp_digits_side {

namespace fs = std::filesystem;
namespace F = torch::nn::functional;

constexpr int64_t kBatch = 16;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
    register_module("aux", aux);
  }

  torch::Tensor forward(torch::Tensor x, bool with_aux) {
    x = torch::tanh(bn1(conv1(x)));
    x = torch::avg_pool2d(torch::tanh(bn2(conv2(x))), 2).flatten(1);
    const auto logits = fc2(torch::tanh(fc1(x)));
    return with_aux ? logits + aux(x) : logits;
  }

  torch::nn::Conv2d conv1{
      torch::nn::Conv2dOptions(1, 8, 3).padding(1).bias(false)};
  torch::nn::BatchNorm2d bn1{8};
  torch::nn::Conv2d conv2{
      torch::nn::Conv2dOptions(8, 16, 3).padding(1).bias(false)};
  torch::nn::BatchNorm2d bn2{16};
  torch::nn::Linear fc1{256, 64};
  torch::nn::Linear fc2{64, 10};
  torch::nn::Linear aux{256, 10};
};
TORCH_MODULE(Net);

/// The options of a variant. ddp_digits.py has the same names.
struct Variant {
  std::string name;
  ddp::DistributedDataParallelOptions options;
  int64_t batches_per_step = 1;
  bool leaves_out_aux = false;
};

std::vector<Variant> all_variants() {
  using Options = ddp::DistributedDataParallelOptions;
  return {
      {"default", Options()},
      {"bucket_view", Options().gradient_as_bucket_view(true)},
      {"many_buckets",
       Options().bucket_cap_mb(0.001).first_bucket_cap_mb(0.001)},
      {"listed_buckets",
       Options().first_bucket_cap_mb(0.0005).bucket_cap_mb(0.002)},
      {"no_sync", Options(), /*batches_per_step=*/2},
      {"no_sync_bucket_view",
       Options().gradient_as_bucket_view(true),
       /*batches_per_step=*/2},
      {"unused",
       Options().find_unused_parameters(true),
       /*batches_per_step=*/1,
       /*leaves_out_aux=*/true},
      {"no_sync_unused",
       Options().find_unused_parameters(true),
       /*batches_per_step=*/2,
       /*leaves_out_aux=*/true},
  };
}

std::string read_bytes(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  TORCH_CHECK(stream, "Expected to read ", file.string(), ", but cannot");
  return {std::istreambuf_iterator<char>(stream), {}};
}

void read_into(torch::Tensor tensor, const fs::path& file) {
  const auto bytes = read_bytes(file);
  TORCH_CHECK(bytes.size() == tensor.nbytes(),
              "Expected ",
              tensor.nbytes(),
              " bytes in ",
              file.string(),
              ", but got ",
              bytes.size());
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
}

torch::Tensor read_all(const fs::path& file, torch::ScalarType type) {
  const auto size = static_cast<int64_t>(fs::file_size(file));
  auto tensor =
      torch::empty({size / static_cast<int64_t>(c10::elementSize(type))}, type);
  read_into(tensor, file);
  return tensor;
}

/// Returns all parameters and buffers by their names.
torch::OrderedDict<std::string, torch::Tensor> state_of(const Net& net) {
  auto state = net->named_parameters();
  state.update(net->named_buffers());
  return state;
}

void save(const Net& net, const fs::path& folder) {
  fs::create_directories(folder);
  for (const auto& item : state_of(net)) {
    const auto& tensor = item.value();
    std::ofstream(folder / item.key(), std::ios::binary)
        .write(static_cast<const char*>(tensor.const_data_ptr()),
               static_cast<std::streamsize>(tensor.nbytes()));
  }
}

/// The images, and this rank's image indices for every batch.
struct Batches {
  torch::Tensor images, labels, order;

  explicit Batches(const fs::path& folder)
      : images(read_all(folder / "images", torch::kFloat).view({-1, 1, 8, 8})),
        labels(read_all(folder / "labels", torch::kLong)),
        order(read_all(folder / "order", torch::kLong)
                  .view({-1, ddp::world_size(), kBatch})
                  .select(1, ddp::rank())) {}
};

void train(const Variant& variant, const Batches& batches, const Net& net) {
  ddp::DistributedDataParallel model(net, variant.options);
  torch::optim::SGD optimizer(
      model->parameters(),
      torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(1e-4));
  for (int64_t i = 0; i < batches.order.size(0); ++i) {
    const auto indices = batches.order[i];
    const bool steps = (i + 1) % variant.batches_per_step == 0;
    const bool with_aux = !variant.leaves_out_aux || (i + ddp::rank()) % 3 == 0;
    std::optional<ddp::NoSyncGuard> no_sync;
    if (!steps) {
      no_sync.emplace(*model);
    }
    const auto logits =
        model->forward(batches.images.index_select(0, indices), with_aux);
    F::cross_entropy(logits, batches.labels.index_select(0, indices))
        .backward();
    if (steps) {
      optimizer.step();
      optimizer.zero_grad();
    }
  }
}

}  // namespace ddp_digits_side

int ddp_digits(const Arguments& args) {
  using namespace ddp_digits_side;
  if (args.size() != 2) {
    std::cerr << "usage: parity ddp_digits INPUT_FOLDER OUTPUT_FOLDER\n";
    return 2;
  }
  const fs::path input = args[0];
  const fs::path output = args[1];
  ddp::init_process_group();
  const Batches batches(input);
  for (const auto& variant : all_variants()) {
    Net net;
    for (const auto& item : state_of(net)) {
      read_into(item.value(), input / "state" / item.key());
    }
    train(variant, batches, net);
    save(net, output / variant.name / std::to_string(ddp::rank()));
  }
  ddp::destroy_process_group();
  return 0;
}

}  // namespace parity
