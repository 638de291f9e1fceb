#include <map>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include "ddp/nn/sync_batch_norm.h"

namespace ddp {
namespace {

namespace nn = torch::nn;
using Group = c10::intrusive_ptr<c10d::Backend>;
using NewLayer = std::shared_ptr<SyncBatchNormImpl>;

/// Returns a new layer for a batch norm, null for any other module.
NewLayer layer_for(const nn::Module& module, const Group& group) {
  if (const auto* layer = module.as<nn::BatchNorm1dImpl>()) {
    return std::make_shared<SyncBatchNormImpl>(*layer, group);
  }
  if (const auto* layer = module.as<nn::BatchNorm2dImpl>()) {
    return std::make_shared<SyncBatchNormImpl>(*layer, group);
  }
  if (const auto* layer = module.as<nn::BatchNorm3dImpl>()) {
    return std::make_shared<SyncBatchNormImpl>(*layer, group);
  }
  return nullptr;
}

/// Replaces an element of a container by `layer`, or only looks for it if
/// `layer` is null. Returns true if the container has the element; a container
/// may also have children that are no elements.
bool replace_element(nn::Module& parent,
                     const std::shared_ptr<nn::Module>& element,
                     const NewLayer& layer) {
  bool is_found = false;
  const auto visit = [&](const std::shared_ptr<nn::Module>& one, auto& place) {
    if (one == element) {
      is_found = true;
      if (layer) {
        place = std::decay_t<decltype(place)>(layer);
      }
    }
  };
  if (auto* sequential = parent.as<nn::SequentialImpl>()) {
    for (auto& any : *sequential) {
      visit(any.ptr(), any);
    }
  } else if (auto* list = parent.as<nn::ModuleListImpl>()) {
    for (auto& one : *list) {
      visit(one, one);
    }
  } else if (auto* dict = parent.as<nn::ModuleDictImpl>()) {
    for (auto& item : *dict) {
      visit(item.value(), item.value());
    }
  }
  return is_found;
}

/// The position of a layer in its parent, and the new layer.
struct Place {
  nn::Module* parent;
  std::string name;
  std::shared_ptr<nn::Module> old;
  NewLayer layer;
};

/// Finds all layers before anything is changed.
class Search {
 public:
  explicit Search(Group group) : group_(std::move(group)) {}

  void visit(nn::Module& parent, const std::string& path) {
    if (!seen_.insert(&parent).second) {
      return;
    }
    for (const auto& item : parent.named_children()) {
      const auto name = path + item.key();
      if (auto layer = replacement(*item.value())) {
        if (!replace_element(parent, item.value(), nullptr)) {
          check_replaceable(parent, item.value(), name);
        }
        places.push_back({&parent, item.key(), item.value(), std::move(layer)});
      } else {
        visit(*item.value(), name + ".");
      }
    }
  }

  std::vector<Place> places;

 private:
  /// Returns one new layer for a layer that occurs in several places.
  NewLayer replacement(const nn::Module& module) {
    const auto known = layers_.find(&module);
    if (known != layers_.end()) {
      return known->second;
    }
    auto layer = layer_for(module, group_);
    if (layer) {
      layers_.emplace(&module, layer);
    }
    return layer;
  }

  /// The parent and the list of children hold one reference each. Any other
  /// holder would continue to call the old layer.
  static void check_replaceable(const nn::Module& parent,
                                const std::shared_ptr<nn::Module>& layer,
                                const std::string& name) {
    TORCH_CHECK(layer.use_count() <= 2,
                "Expected batch norm ",
                name,
                " to be found by its name, but ",
                parent.name(),
                " holds it as a member as well, which cannot be replaced from "
                "outside; declare that member as ddp::SyncBatchNorm");
  }

  Group group_;
  std::set<const nn::Module*> seen_;
  std::map<const nn::Module*, NewLayer> layers_;
};

}  // namespace

int64_t convert_sync_batchnorm(nn::Module& module, const Group& group) {
  TORCH_CHECK(!layer_for(module, group),
              "Expected a module with batch norms in it, but got a batch norm; "
              "make it a ddp::SyncBatchNorm");
  Search search(group);
  search.visit(module, "");
  for (const auto& place : search.places) {
    replace_element(*place.parent, place.old, place.layer);
    place.parent->replace_module(place.name, place.layer);
  }
  return static_cast<int64_t>(search.places.size());
}

}  // namespace ddp
