// Two views of data parallel training in one process, on the digits.
//
// Purpose: replicas of a network, on GPUs or here on the CPU, are kept equal by
// a parameter server or by an all-reduce. Both end with the same parameters,
// bit for bit, and up to rounding with the parameters of a training without
// replicas. The traffic differs: the parameter server's device carries the load
// that the all-reduce spreads over all devices. The program prints the bytes
// that each replica sends and receives in a step.
//
//   two_views
//   two_views --replicas 8
#include <dp/moved_bytes.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "samples/support/command_line.h"
#include "samples/support/datasets.h"
#include "samples/support/devices.h"
#include "samples/support/models.h"
#include "samples/support/parameter_hash.h"
#include "samples/support/score.h"
#include "samples/support/text.h"

namespace {

using namespace samples;

using Tensors = std::vector<torch::Tensor>;

struct Options {
  int replicas = 4;
  int64_t epochs = 6;
  int64_t batch_size = 64;
};

// Replicas of one network, one per device, and the bytes that they moved.
class Replicas {
 public:
  Replicas(const Dataset& dataset, int count)
      : moved_(static_cast<size_t>(count)) {
    for (int i = 0; i < count; ++i) {
      torch::manual_seed(0);
      networks_.push_back(make_model(ModelKind::small_cnn, dataset));
      remove_dropout(*networks_.back());  // the parts' masks would differ
      if (gpu_count() >= count) {
        networks_.back()->to(
            torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(i)));
      }
      parameters_.push_back(networks_.back()->parameters());
    }
  }

  size_t count() const { return networks_.size(); }
  Classifier& network(size_t i) const { return *networks_[i]; }
  const Tensors& parameters(size_t i) const { return parameters_[i]; }
  const std::vector<dp::MovedBytes>& moved() const { return moved_; }

  // Copies a tensor from a replica's device to another replica's tensor.
  void copy(const torch::Tensor& source,
            size_t from,
            const torch::Tensor& target,
            size_t to) {
    target.copy_(source);
    count_move(source, from, to);
  }

  // Adds a tensor on a replica's device to another replica's tensor.
  void add(const torch::Tensor& source,
           size_t from,
           const torch::Tensor& target,
           size_t to) {
    target.add_(source.to(target.device()));
    count_move(source, from, to);
  }

 private:
  void count_move(const torch::Tensor& tensor, size_t from, size_t to) {
    if (from != to) {
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      moved_[from].sent += bytes;
      moved_[to].received += bytes;
    }
  }

  std::vector<std::shared_ptr<Classifier>> networks_;
  std::vector<Tensors> parameters_;
  std::vector<dp::MovedBytes> moved_;
};

torch::optim::SGD make_optimizer(const Tensors& parameters) {
  return torch::optim::SGD(parameters,
                           torch::optim::SGDOptions(0.05).momentum(0.9));
}

// The first replica is the server: its device sums all gradients, makes the
// optimizer's step and sends the parameters back. It receives n - 1 times the
// gradients and sends n - 1 times the parameters; each other device sends and
// receives once.
class ParameterServer {
 public:
  explicit ParameterServer(Replicas& replicas)
      : replicas_(replicas),
        optimizer_(make_optimizer(replicas.parameters(0))) {}

  void step() {
    const torch::NoGradGuard no_grad;
    const auto& served = replicas_.parameters(0);
    for (size_t worker = 1; worker < replicas_.count(); ++worker) {
      const auto& own = replicas_.parameters(worker);
      for (size_t i = 0; i < served.size(); ++i) {
        replicas_.add(own[i].grad(), worker, served[i].grad(), 0);
      }
    }
    optimizer_.step();
    for (size_t worker = 1; worker < replicas_.count(); ++worker) {
      const auto& own = replicas_.parameters(worker);
      for (size_t i = 0; i < served.size(); ++i) {
        replicas_.copy(served[i], 0, own[i], worker);
      }
    }
  }

 private:
  Replicas& replicas_;
  torch::optim::SGD optimizer_;
};

// Each replica sums its chunk of all gradients, sends the sum to the others and
// makes the optimizer's step itself: a reduce-scatter, then an all-gather. Each
// device sends and receives 2 (n - 1) / n times the gradients.
class AllReduce {
 public:
  explicit AllReduce(Replicas& replicas) : replicas_(replicas) {
    for (size_t i = 0; i < replicas.count(); ++i) {
      optimizers_.push_back(make_optimizer(replicas.parameters(i)));
    }
  }

  void step() {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < replicas_.parameters(0).size(); ++i) {
      reduce(i);
    }
    for (auto& optimizer : optimizers_) {
      optimizer.step();
    }
  }

 private:
  void reduce(size_t parameter) {
    const size_t count = replicas_.count();
    std::vector<Tensors> chunks;  // by replica, views of its gradient
    for (size_t i = 0; i < count; ++i) {
      chunks.push_back(
          replicas_.parameters(i)[parameter].grad().view(-1).tensor_split(
              static_cast<int64_t>(count)));
    }
    for (size_t owner = 0; owner < count; ++owner) {
      // The replicas' order makes the sums equal to the server's, bit for bit.
      const auto sum = torch::zeros_like(chunks[owner][owner]);
      for (size_t i = 0; i < count; ++i) {
        replicas_.add(chunks[i][owner], i, sum, owner);
      }
      for (size_t i = 0; i < count; ++i) {
        replicas_.copy(sum, owner, chunks[i][owner], i);
      }
    }
  }

  Replicas& replicas_;
  std::vector<torch::optim::SGD> optimizers_;
};

// Computes the gradients of a batch, a part on each replica. Their sum is the
// gradient of the mean loss of the batch.
void backward(const Replicas& replicas, const torch::data::Example<>& batch) {
  const auto count = static_cast<int64_t>(replicas.count());
  const auto images = batch.data.tensor_split(count);
  const auto labels = batch.target.tensor_split(count);
  const auto rows = static_cast<double>(batch.data.size(0));
  for (size_t i = 0; i < replicas.count(); ++i) {
    auto& network = replicas.network(i);
    const auto device = replicas.parameters(i).front().device();
    network.train();
    network.zero_grad();
    const auto loss =
        torch::cross_entropy_loss(network.forward(images[i].to(device)),
                                  labels[i].to(device),
                                  {},
                                  at::Reduction::Sum) /
        rows;
    loss.backward();
  }
}

// Trains by one view. Returns the number of steps.
template <class View>
int64_t train(const Options& options, Images images, Replicas& replicas) {
  View view(replicas);
  torch::manual_seed(1);
  int64_t steps = 0;
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    const auto order = torch::randperm(static_cast<int64_t>(*images.size()));
    for (const auto& chosen : order.split(options.batch_size)) {
      const auto* data = chosen.const_data_ptr<int64_t>();
      backward(
          replicas,
          images.get_batch(std::vector<size_t>(data, data + chosen.numel())));
      view.step();
      ++steps;
    }
  }
  return steps;
}

void print_result(const char* name,
                  const Replicas& replicas,
                  const Images& images) {
  auto& first = replicas.network(0);
  print(format("%-18s test accuracy %s, parameters %016lx",
               name,
               to_text(classify(first, images)).c_str(),
               parameter_hash(first)));
}

double greatest_difference(const Tensors& a, const Tensors& b) {
  double greatest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    greatest = std::max(greatest,
                        (a[i].cpu() - b[i].cpu()).abs().max().item<double>());
  }
  return greatest;
}

void run(const Options& options) {
  const auto dataset = load_digits(find_digits());
  Replicas served(dataset, options.replicas);
  Replicas reduced(dataset, options.replicas);
  Replicas alone(dataset, 1);
  const auto steps = train<ParameterServer>(options, dataset.train, served);
  train<AllReduce>(options, dataset.train, reduced);
  train<ParameterServer>(options, dataset.train, alone);

  print(format("%d replicas, the first on %s",
               options.replicas,
               served.parameters(0).front().device().str().c_str()));
  print_result("parameter server:", served, dataset.test);
  print_result("all-reduce:", reduced, dataset.test);
  print(format("largest difference from a training without replicas: %.1e",
               greatest_difference(served.parameters(0), alone.parameters(0))));
  print("bytes a step        parameter server             all-reduce");
  print("                    sent    received          sent    received");
  for (size_t i = 0; i < served.count(); ++i) {
    const auto server = served.moved()[i];
    const auto ring = reduced.moved()[i];
    print(format("replica %-3zu %12ld%12ld  %12ld%12ld",
                 i,
                 server.sent / steps,
                 server.received / steps,
                 ring.sent / steps,
                 ring.received / steps));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CommandLine line("two_views",
                   "Trains replicas of a network on the digits in one process, "
                   "by a parameter server and by an all-reduce.");
  line.add("--replicas",
           options.replicas,
           "Replicas; each on a GPU where there are as many")
      .between(1, 1024);
  line.add("--epochs", options.epochs, "Passes over the digits").at_least(1);
  line.add("--batch-size", options.batch_size, "Images of a step").at_least(1);
  return line.run(argc, argv, [&] { run(options); });
}
