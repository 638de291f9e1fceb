// A training in a program that MPI has started: no ddprun, no MASTER_ADDR.
//
//   mpicxx ... mpi_minimal.cpp        (links ddp::ddp)
//   mpirun -n 2 mpi_minimal
//
// Each rank fits the same line to samples of its own.
#include <ddp/ddp.h>
#include <ddp/mpi_group.h>
#include <torch/torch.h>

#include <cstdint>
#include <iostream>

constexpr int64_t steps = 200;

void train(int rank) {
  // The group sums gradients by MPI's own collectives.
  const auto group = ddp::mpi_group(MPI_COMM_WORLD);
  torch::nn::Linear net(1, 1);
  ddp::DistributedDataParallel model(
      net, ddp::DistributedDataParallelOptions().process_group(group));
  torch::optim::SGD optimizer(model->parameters(), 0.2);
  torch::manual_seed(rank);
  torch::Tensor loss;
  for (int64_t step = 0; step < steps; ++step) {
    const auto x = torch::rand({32, 1});
    optimizer.zero_grad();
    loss = torch::mse_loss(model->forward(x), 3 * x - 1);
    loss.backward();  // gradients are averaged over ranks here
    optimizer.step();
  }
  const auto mean =
      ddp::reduce_tensor(loss.detach(), ddp::Reduction::mean, group);
  if (rank == 0) {
    std::cout << "y = " << net->weight.item<double>() << " x + "
              << net->bias.item<double>() << ", loss " << mean.item<double>()
              << "\n";
  }
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  train(rank);  // releases the model and the group before MPI_Finalize
  MPI_Finalize();
}
