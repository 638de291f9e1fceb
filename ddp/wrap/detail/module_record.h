#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace ddp::detail {

/// The submodules of a wrapped module, and its parameters when it was wrapped.
class ModuleRecord {
 public:
  ModuleRecord(torch::nn::Module& module, std::set<std::string> ignored);

  /// Checks that the module has no new parameters since it was wrapped: a new
  /// parameter would train on each rank alone. Costs a comparison of pointers
  /// per parameter. Returns true if there are other submodules.
  /// @throws c10::Error that names a new parameter.
  bool update();

  /// The module and its submodules now.
  const std::vector<std::shared_ptr<torch::nn::Module>>& modules() const {
    return modules_;
  }
  const std::set<std::string>& ignored() const { return ignored_; }

 private:
  bool is_current() const;
  void record();

  torch::nn::Module& module_;
  std::set<std::string> ignored_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<const c10::TensorImpl*> parameters_;  // in the order of modules_
  std::set<const c10::TensorImpl*> wrapped_;
};

}  // namespace ddp::detail
