#include "ddp/wrap/detail/module_record.h"

#include <utility>

namespace ddp::detail {
namespace {

using torch::nn::Module;

/// Reads the protected list of a module's own parameters without copying names.
struct OwnParameters : Module {
  static const torch::OrderedDict<std::string, at::Tensor>& of(
      const Module& module) {
    return module.*&OwnParameters::parameters_;
  }
};

/// Calls `visit` for the parameters and the children of each module, in one
/// order. Stops if it returns false.
template <typename VisitTensor, typename VisitModule>
bool walk(const Module& module,
          const VisitTensor& visit_tensor,
          const VisitModule& visit_module) {
  for (const auto& item : OwnParameters::of(module)) {
    if (!visit_tensor(item.value())) {
      return false;
    }
  }
  for (const auto& child : module.children()) {
    if (!visit_module(child) || !walk(*child, visit_tensor, visit_module)) {
      return false;
    }
  }
  return true;
}

}  // namespace

ModuleRecord::ModuleRecord(Module& module, std::set<std::string> ignored)
    : module_(module), ignored_(std::move(ignored)) {
  record();
  wrapped_.insert(parameters_.begin(), parameters_.end());
}

void ModuleRecord::record() {
  parameters_.clear();
  modules_ = {module_.shared_from_this()};
  walk(
      module_,
      [this](const at::Tensor& tensor) {
        parameters_.push_back(tensor.unsafeGetTensorImpl());
        return true;
      },
      [this](const std::shared_ptr<Module>& child) {
        modules_.push_back(child);
        return true;
      });
}

bool ModuleRecord::is_current() const {
  auto tensor = parameters_.begin();
  auto module = modules_.begin() + 1;
  return walk(
             module_,
             [&](const at::Tensor& one) {
               return tensor != parameters_.end() &&
                      *tensor++ == one.unsafeGetTensorImpl();
             },
             [&](const std::shared_ptr<Module>& child) {
               return module != modules_.end() && *module++ == child;
             }) &&
         tensor == parameters_.end() && module == modules_.end();
}

bool ModuleRecord::update() {
  if (is_current()) {
    return false;
  }
  for (const auto& item : module_.named_parameters()) {
    TORCH_CHECK(
        wrapped_.count(item.value().unsafeGetTensorImpl()) > 0 ||
            ignored_.count(item.key()) > 0,
        "Expected the parameters that the module had when it was wrapped, but "
        "parameter ",
        item.key(),
        " has come since, and each rank would train it alone; make a new "
        "DistributedDataParallel on every rank");
  }
  record();
  return true;
}

}  // namespace ddp::detail
