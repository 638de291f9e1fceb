#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "dp/data_parallel/detail/gradient_path.h"
#include "dp/data_parallel/detail/replica.h"
#include "dp/data_parallel/detail/scatter.h"

namespace dp::detail {

/// The module and its persistent copies, one per device. Replica 0 is the
/// module.
class Replicas {
 public:
  /// @throws c10::Error as `make_replica`, and if the module's tensors are not
  ///   on the first device.
  Replicas(std::shared_ptr<torch::nn::Module> module,
           std::vector<c10::Device> devices,
           MakeModule make,
           TrafficCounters traffic);

  /// Updates replicas from the module for one forward: values of parameters and
  /// buffers, training modes, and gradient paths. Recreates all copies if the
  /// module has other submodules or tensors than before.
  /// @throws c10::Error as the constructor.
  void refresh(const std::vector<size_t>& members);

  /// Recreates all copies. The old copies are destroyed first, so that both
  /// sets need not fit into memory. After an error the next `refresh` tries
  /// again.
  void remake();

  /// Checks, after a forward on several replicas, that it has registered no
  /// submodules, parameters or buffers: each replica would have made its own,
  /// with other values.
  /// @throws c10::Error if it has.
  void check_nothing_registered() const;

  torch::nn::Module& operator[](size_t replica);

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
