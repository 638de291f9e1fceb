#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "dp/data_parallel/detail/gradient_path.h"
#include "dp/data_parallel/detail/replica.h"
#include "dp/data_parallel/detail/traffic_counters.h"

namespace dp::detail {

/// The module and its kept copies, one a device. Replica 0 is the module.
class Replicas {
 public:
  /// @throws c10::Error as `make_replica` does, and when the module's tensors
  ///   are not on the first device.
  Replicas(std::shared_ptr<torch::nn::Module> module,
           std::vector<c10::Device> devices,
           MakeModule make,
           TrafficCounters traffic);

  /// Brings replicas up to date with the module for one forward: values of
  /// parameters and buffers, modes, and which way gradients go. Makes all
  /// copies anew when the module has got other submodules or tensors.
  /// @throws c10::Error within a scope that casts the module's parameters.
  void refresh(const std::vector<size_t>& members);

  /// Makes all copies anew. The old ones are gone before, so that both need not
  /// be there at once; after an error the next `refresh` tries again.
  void remake();

  torch::nn::Module& operator[](size_t replica);

  /// All of them, which outlive this; their gradients then still find the
  /// module's.
  std::vector<std::shared_ptr<torch::nn::Module>> modules() const;

 private:
  void make(const ModuleState& state);
  void copy_state(const std::vector<Replica*>& copies);
  void connect_gradients(const std::vector<Replica*>& copies);

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<c10::Device> devices_;
  MakeModule make_;
  TrafficCounters traffic_;
  StateLayout layout_;
  std::vector<Replica> copies_;  // of replicas 1, 2, ..
  std::optional<GradientPath> path_;
};

}  // namespace dp::detail
