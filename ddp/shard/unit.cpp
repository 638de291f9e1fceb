#include "ddp/shard/unit.h"

#include <algorithm>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "ddp/shard/operator_watch.h"
#include "ddp/shard/sharded_units.h"
#include "ddp/shard/unit_memory.h"
#include "ddp/tensors/streams.h"

namespace ddp::detail {
namespace {

std::string name_of(const std::vector<NamedParameter>& parameters) {
  const auto& first = parameters.front().name;
  return parameters.size() == 1 ? first
                                : first + " to " + parameters.back().name;
}

/// A leaf. It has one version counter with its `data()`, to which
/// torch::optim::SGD writes, so the counter shows a step.
class LeafImpl : public c10::TensorImpl {
 public:
  using c10::TensorImpl::TensorImpl;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& /*version*/,
      bool allow_tensor_metadata_change) const override {
    return TensorImpl::shallow_copy_and_detach(version_counter(),
                                               allow_tensor_metadata_change);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version,
      bool allow_tensor_metadata_change) const override {
    return shallow_copy_and_detach(
        static_cast<const c10::VariableVersion&>(version),
        allow_tensor_metadata_change);
  }
};

/// @param memory  of the leaf
/// @param trains  the parameter, when the module was wrapped
void check_leaf(const at::Tensor& leaf,
                const c10::StorageImpl& memory,
                const NamedParameter& parameter,
                bool trains) {
  TORCH_CHECK(leaf.storage().unsafeGetStorageImpl() == &memory,
              "Expected the leaf of parameter ",
              parameter.name,
              " to keep its memory, but something has given it other memory "
              "(set_data, vector_to_parameters); write to it in place (copy_), "
              "or to the parameter in the scope of a ddp::WholeParameters");
  const auto* meta = torch::autograd::impl::get_autograd_meta(leaf);
  const auto hooks = meta == nullptr ? nullptr : meta->cpp_hooks_list_;
  TORCH_CHECK(hooks == nullptr || std::none_of(hooks->begin(),
                                               hooks->end(),
                                               [](const auto& hook) {
                                                 return hook != nullptr;
                                               }),
              "Expected hooks on parameter ",
              parameter.name,
              " of the module, but got one on its leaf, to which no gradient "
              "flows; call model->module()->parameters()[i].register_hook");
  const bool differs =
      leaf.requires_grad() ? !trains : parameter.tensor.requires_grad();
  TORCH_CHECK(!c10::GradMode::is_enabled() || !differs,
              "Expected requires_grad of parameter ",
              parameter.name,
              " of the module to change, but only that of its leaf has "
              "changed, to which no gradient flows; set it on "
              "model->module()->parameters()");
}

/// Called in a hook of the parameter. Returns false in torch::autograd::grad(),
/// which calls the hooks, too.
bool will_accumulate(const at::Tensor& parameter) {
  using namespace torch::autograd;
  const auto* nodes = get_current_graph_task_exec_info();
  if (nodes == nullptr || nodes->empty()) {
    return true;
  }
  const auto node =
      nodes->find(impl::try_get_grad_accumulator(parameter).get());
  return node != nodes->end() && node->second.needed_;
}

}  // namespace

Unit::Unit(ShardedUnits& owner,
           size_t index,
           std::vector<NamedParameter> parameters,
           const UnitPlan& plan,
           at::Tensor slab,
           c10::ScalarType dtype)
    : owner_(owner),
      index_(index),
      parameters_(std::move(parameters)),
      plan_(plan),
      name_(name_of(parameters_)),
      slab_(std::move(slab)),
      dtype_(dtype) {
  const c10::NoGradGuard no_grad;
  const int rank = owner.group()->getRank();
  storage_ = c10::make_intrusive<UnitStorage>(this);
  const auto like = at::empty({0}, options());
  leaf_storage_ = c10::make_intrusive<SlabStorage>(this);
  const auto no_means = c10::make_intrusive<NoMeanStorage>(*this);
  has_local_.resize(parameters_.size());
  versions_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor tensor = parameters_[i].tensor;
    const auto [first, size] = part_of(i, rank);
    auto leaf = at::detail::make_tensor<LeafImpl>(
        c10::Storage(leaf_storage_),
        slab_.key_set() | c10::DispatchKeySet(watch_operators()),
        slab_.dtype());
    // Programs choose parameter groups by the number of dimensions.
    std::vector<int64_t> sizes(std::max<int64_t>(tensor.dim(), 1), 1);
    const std::vector<int64_t> strides = sizes;
    sizes[0] = size;
    leaf.unsafeGetTensorImpl()->set_sizes_and_strides(
        sizes,
        strides,
        size == 0 ? 0 : plan.offsets[i] + first - plan.slab * rank);
    leaf.set_requires_grad(tensor.requires_grad());
    leaves_.push_back(std::move(leaf));
    const auto over = [&](const c10::intrusive_ptr<c10::StorageImpl>& memory) {
      return watched_tensor(
          like, memory, tensor.sizes(), tensor.strides(), plan.offsets[i]);
    };
    no_gradients_.push_back(
        over(c10::make_intrusive<NoGradientStorage>(*this, i)));
    no_means_.push_back(watched_tensor(slab_,
                                       no_means,
                                       leaves_[i].sizes(),
                                       leaves_[i].strides(),
                                       leaves_[i].storage_offset()));
    tensor.mutable_grad().reset();
    tensor.set_data(over(storage_));
    if (plan.trains) {
      hooks_.push_back(
          tensor.register_hook([this, i](const at::Tensor& /*grad*/) {
            if (will_accumulate(parameters_[i].tensor)) {
              owner_.clear_gradients();
              drop_local(i);
            }
          }));
    }
  }
}

Unit::~Unit() {
  for (size_t i = 0; i < hooks_.size(); ++i) {
    parameters_[i].tensor.remove_hook(hooks_[i]);
  }
  set_memory({});
  storage_->unit = nullptr;
  leaf_storage_->unit = nullptr;
  for (const auto& gradient : no_gradients_) {
    static_cast<NoGradientStorage*>(watched_storage_of(gradient))->unit =
        nullptr;
  }
}

std::pair<int64_t, int64_t> Unit::part_of(size_t parameter, int rank) const {
  const int64_t begin = plan_.offsets[parameter];
  const int64_t end = begin + parameters_[parameter].tensor.numel();
  const int64_t from = std::clamp(plan_.slab * rank, begin, end);
  const int64_t to = std::clamp(plan_.slab * (rank + 1), begin, end);
  return {from - begin, to - from};
}

int64_t Unit::numel() const {
  return plan_.slab * owner_.group()->getSize();
}

void Unit::seal() {
  leaf_storage_->set_memory({});
}

void Unit::make_readable() {
  seal();
  if (plan_.trains) {
    for (const auto& parameter : parameters_) {
      parameter.tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
}

void Unit::set_memory(const at::Tensor& whole) {
  storage_->set_memory(whole);
}

void Unit::make_writable() {
  set_memory({});
  private_.reset();
  leaf_storage_->set_memory(slab_);
}

void Unit::make_private(const at::Tensor& whole) {
  private_ = whole;
  set_memory(whole);
}

void Unit::keep_private() {
  const auto mine =
      private_.narrow(0, plan_.slab * owner_.group()->getRank(), plan_.slab);
  slab_.copy_(slab_.dtype() == mine.dtype()
                  ? mine
                  : at::where(slab_.to(dtype_) == mine,
                              slab_,
                              mine.to(slab_.scalar_type())));
  record_stream(private_);  // another stream may have allocated it
}

const at::Tensor& Unit::new_gradients() {
  if (!gradients_.defined()) {
    // At once, so that no temporary tensors lie between them in the heap.
    for (const auto& unit : owner_.units()) {
      unit->renew_gradients();
    }
  } else if (!gradients_.is_cpu() || gradients_.storage().use_count() > 1) {
    // The program, or a stream, may still read the last pass's gradients.
    renew_gradients();
  }
  return gradients_;
}

void Unit::renew_gradients() {
  if (plan_.trains) {
    gradients_ = watched_tensor(
        slab_,
        c10::make_intrusive<ShardGradientStorage>(at::empty_like(slab_)),
        slab_.sizes(),
        slab_.strides(),
        /*offset=*/0);
  }
}

void Unit::add_gradients(const std::vector<bool>& is_kept) {
  const auto storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
      gradients_.storage().unsafeGetStorageImpl());
  // Another stream may have allocated them.
  record_stream(watched_storage_of(gradients_)->memory());
  is_cleared_ = false;
  forget_local();
  for (size_t i = 0; i < leaves_.size(); ++i) {
    at::Tensor& grad = leaves_[i].mutable_grad();
    if (!is_kept[i]) {
      auto part = watched_tensor(gradients_,
                                 storage,
                                 leaves_[i].sizes(),
                                 leaves_[i].strides(),
                                 leaves_[i].storage_offset());
      if (grad.defined()) {
        grad.add_(part);
      } else {
        grad = std::move(part);
      }
    }
    if (grad.defined()) {
      parameters_[i].tensor.mutable_grad() = no_gradients_[i];
    }
  }
}

void Unit::clear_gradients() {
  if (is_cleared_) {
    return;
  }
  is_cleared_ = true;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& grad = parameters_[i].tensor.mutable_grad();
    if (!grad.defined()) {
      leaves_[i].mutable_grad().reset();
    } else if (watched_storage_of(grad) ==
               watched_storage_of(no_gradients_[i])) {
      grad.reset();
    }
  }
}

void Unit::check_gradient(size_t parameter) const {
  const auto& [name, tensor, sparse] = parameters_[parameter];
  const auto& grad = tensor.grad();
  TORCH_CHECK(
      !grad.defined() || watched_storage_of(grad) ==
                             watched_storage_of(no_gradients_[parameter]),
      "Expected the gradient of parameter ",
      name,
      " of the module to come from backward(), but something has assigned one, "
      "which the optimizer does not see, because it steps the leaves; reset it "
      "by model->zero_grad(), and assign this rank's part to the leaf of "
      "model->named_shards()");
}

void Unit::keep_local(size_t parameter) {
  if (!parameters_[parameter].tensor.grad().defined()) {
    return;  // a function of the graph may leave it undefined
  }
  at::Tensor& grad = leaves_[parameter].mutable_grad();
  if (!grad.defined()) {
    grad = no_means_[parameter];
  }
  has_local_[parameter] = true;
  versions_[parameter] = grad._version();
}

void Unit::forget_local() {
  for (size_t i = 0; i < leaves_.size(); ++i) {
    at::Tensor& grad = leaves_[i].mutable_grad();
    if (has_local_[i] &&
        watched_storage_of(grad) == watched_storage_of(no_means_[i])) {
      grad.reset();
    }
    has_local_[i] = false;
  }
}

void Unit::drop_local() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    drop_local(i);
  }
}

void Unit::drop_local(size_t parameter) {
  if (!has_local_[parameter]) {
    return;
  }
  at::Tensor& local = parameters_[parameter].tensor.mutable_grad();
  at::Tensor& mean = leaves_[parameter].mutable_grad();
  if (!local.defined() || !mean.defined()) {
    local.reset();
    mean.reset();
    has_local_[parameter] = false;
    return;
  }
  TORCH_CHECK(mean._version() == versions_[parameter],
              "Expected the gradients of model->parameters() to stay as they "
              "are from a pass under a ddp::NoSyncGuard to the next averaged "
              "one, which adds to them, but something has changed that of ",
              parameters_[parameter].name,
              "; reset by zero_grad() with set_to_none");
}

void Unit::check_parameters() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, tensor, sparse] = parameters_[i];
    TORCH_CHECK(tensor.has_storage() &&
                    tensor.storage().unsafeGetStorageImpl() == storage_.get(),
                "Expected parameter ",
                name,
                " to keep the memory that the ranks share, but something has "
                "given it other memory (to(), set_data, torch::load); load by "
                "ddp::Checkpoint, and convert the module before it is wrapped");
    check_leaf(leaves_[i], *leaf_storage_, parameters_[i], plan_.trains);
  }
}

UnitPlace unit_place_of(const at::Tensor& tensor) {
  if (const auto* whole =
          dynamic_cast<UnitStorage*>(watched_storage_of(tensor))) {
    if (whole->unit == nullptr) {
      return {};
    }
    const auto& offsets = whole->unit->plan().offsets;
    const auto place = std::lower_bound(
        offsets.begin(), offsets.end(), tensor.storage_offset());
    const auto index = static_cast<size_t>(place - offsets.begin());
    const bool is_parameter =
        place != offsets.end() && *place == tensor.storage_offset() &&
        whole->unit->parameters()[index].tensor.sizes() == tensor.sizes();
    return is_parameter ? UnitPlace{whole->unit, index} : UnitPlace();
  }
  const auto* slab = dynamic_cast<SlabStorage*>(shard_storage_of(tensor));
  const auto* unit = slab == nullptr ? nullptr : slab->unit;
  for (size_t i = 0; unit != nullptr && i < unit->leaves().size(); ++i) {
    if (unit->leaves()[i].is_same(tensor)) {
      return {unit, i};
    }
  }
  return {};
}

}  // namespace ddp::detail
