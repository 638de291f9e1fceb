#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
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

/// Returns true if a container has the child as its element of this number. A
/// container may also have children that are no elements.
bool is_element(nn::Module& parent,
                size_t index,
                const std::shared_ptr<nn::Module>& child) {
  const auto place = static_cast<std::ptrdiff_t>(index);
  if (const auto* sequential = parent.as<nn::SequentialImpl>()) {
    return index < sequential->size() && sequential->ptr(index) == child;
  }
  if (const auto* list = parent.as<nn::ModuleListImpl>()) {
    return index < list->size() && list->ptr(index) == child;
  }
  auto* dict = parent.as<nn::ModuleDictImpl>();
  return dict != nullptr && index < dict->size() &&
         (dict->begin() + place)->value() == child;
}

/// The position of a layer in its parent, and the new layer.
struct Place {
  nn::Module* parent;
  std::optional<std::ptrdiff_t> element;  // if the parent is a container
  std::string name;
  NewLayer layer;

  void fill() const {
    if (element) {
      fill_element(*element);
    }
    parent->replace_module(name, layer);
  }

  void fill_element(std::ptrdiff_t index) const {
    if (auto* sequential = parent->as<nn::SequentialImpl>()) {
      *(sequential->begin() + index) = nn::AnyModule(layer);
    } else if (auto* list = parent->as<nn::ModuleListImpl>()) {
      *(list->begin() + index) = layer;
    } else if (auto* dict = parent->as<nn::ModuleDictImpl>()) {
      (dict->begin() + index)->value() = layer;
    }
  }
};

/// Finds all layers before anything is changed.
class Search {
 public:
  explicit Search(Group group) : group_(std::move(group)) {}

  void visit(nn::Module& parent, const std::string& path) {
    if (!seen_.insert(&parent).second) {
      return;
    }
    size_t index = 0;
    for (const auto& item : parent.named_children()) {
      const auto name = path + item.key();
      if (auto layer = replacement(*item.value())) {
        std::optional<std::ptrdiff_t> element;
        if (is_element(parent, index, item.value())) {
          element = static_cast<std::ptrdiff_t>(index);
        } else {
          check_replaceable(parent, item.value(), name);
        }
        places.push_back({&parent, element, item.key(), std::move(layer)});
      } else {
        visit(*item.value(), name + ".");
      }
      ++index;
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
    place.fill();
  }
  return static_cast<int64_t>(search.places.size());
}

}  // namespace ddp
