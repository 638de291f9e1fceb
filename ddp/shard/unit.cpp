#include "ddp/shard/unit.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include "ddp/shard/operator_watch.h"
#include "ddp/shard/sharded_units.h"
#include "ddp/tensors/shard_storage.h"

namespace ddp::detail {
namespace {

/// Returns a pointer that keeps `memory`.
at::DataPtr pointer_to(const at::Tensor& memory) {
  return {memory.mutable_data_ptr(),
          new at::Tensor(memory),
          [](void* held) { delete static_cast<at::Tensor*>(held); },
          memory.device()};
}

std::string name_of(const std::vector<NamedParameter>& parameters) {
  const auto& first = parameters.front().name;
  return parameters.size() == 1 ? first
                                : first + " to " + parameters.back().name;
}

/// Refuses the operators with which a norm, a decision about all elements or
/// an optimizer that combines elements begins.
/// @param of  "parameter" or "gradient"
void refuse_over_all(const c10::FunctionSchema& op, const char* of) {
  static const std::unordered_set<std::string> over_all{
      "aten::_foreach_norm",
      "aten::abs",
      "aten::all",
      "aten::amax",
      "aten::amin",
      "aten::any",
      "aten::argmax",
      "aten::cat",
      "aten::dot",
      "aten::isfinite",
      "aten::isinf",
      "aten::isnan",
      "aten::linalg_norm",
      "aten::linalg_vector_norm",
      "aten::max",
      "aten::mean",
      "aten::min",
      "aten::norm",
      "aten::pow",
      "aten::square",
      "aten::std",
      "aten::sum",
      "aten::var"};
  TORCH_CHECK(over_all.count(op.name()) == 0,
              "Expected an optimizer that computes each element by itself, or "
              "a norm of the gradients of all ranks, but ",
              op.name(),
              " got this rank's part of a ",
              of,
              "; clip by model->clip_grad_norm_, skip steps by its result or "
              "by a ddp::GradScaler, and train with SGD, Adam, AdamW, RMSprop "
              "or Adagrad. A clone() of the part may be used");
}

}  // namespace

/// Memory of a unit's parameters.
class UnitStorage : public WatchedStorage {
 public:
  UnitStorage(Unit* of, int64_t bytes, c10::Device device)
      : WatchedStorage(use_byte_size_t(),
                       bytes,
                       at::DataPtr(nullptr, device),
                       c10::GetAllocator(device.type()),
                       /*resizable=*/false),
        unit(of),
        name_(of->name()) {
    release_data_and_set_meta_custom_data_ptr_error_msg_(
        of->owner().text_without_memory(*of));
  }

  at::Tensor before_operator(const c10::FunctionSchema& op,
                             bool writes) const override {
    // aten::set_, which torch::load calls, replaces the memory.
    TORCH_CHECK(!writes || (unit != nullptr && unit->is_private() &&
                            op.name() != "aten::set_"),
                "Expected an operator that reads the parameters ",
                name_,
                ", but got ",
                op.name(),
                ", which writes to one; give model->parameters() to the "
                "optimizer, load by ddp::Checkpoint, or write in the scope of "
                "a ddp::WholeParameters");
    return unit == nullptr || unit->is_private() || !reads_values(op)
               ? at::Tensor()
               : unit->owner().before_operator(*unit);
  }

  /// @param memory  may be null.
  void set_memory(at::DataPtr memory) {
    const bool has_memory = memory.get() != nullptr;
    set_data_ptr_noswap(std::move(memory));
    set_access_throws(*this, !has_memory);
  }

  Unit* unit;

 private:
  const std::string name_;
};

/// Memory of this rank's slab.
class SlabStorage : public WatchedStorage, public ShardStorage {
 public:
  SlabStorage(const Unit* of, const at::Tensor& slab)
      : WatchedStorage(use_byte_size_t(),
                       static_cast<int64_t>(slab.nbytes()),
                       pointer_to(slab),
                       /*allocator=*/nullptr,
                       /*resizable=*/false),
        unit(of) {
    release_data_and_set_meta_custom_data_ptr_error_msg_(
        "Expected the optimizer's step after backward(), outside of a "
        "ddp::NoSyncGuard, and before the next forward or collective, because "
        "the ranks read the parameters from then on, but something asked for "
        "the memory of this rank's part of " +
        of->name() +
        " afterwards; evaluate after the step, make the steps of all "
        "optimizers "
        "one after the other, and compute a penalty on weights from "
        "model->module()->parameters()");
    set_access_throws(*this, false);
  }

  at::Tensor before_operator(const c10::FunctionSchema& op,
                             bool /*writes*/) const override {
    refuse_over_all(op, "parameter");
    TORCH_CHECK(op.name() != "aten::uniform_" && op.name() != "aten::normal_",
                "Expected initial values for whole parameters, but ",
                op.name(),
                " got this rank's part of one, which has another shape; "
                "initialise model->module()->parameters() before the module "
                "is wrapped, or in the scope of a ddp::WholeParameters");
    return {};
  }

  const Unit* unit;
};

namespace {

/// No memory: the gradient of a parameter after a pass.
class NoGradientStorage : public WatchedStorage {
 public:
  NoGradientStorage(const Unit& of, size_t index)
      : WatchedStorage(use_byte_size_t(),
                       of.bytes(),
                       at::DataPtr(nullptr, of.slab().device()),
                       /*allocator=*/nullptr,
                       /*resizable=*/false),
        unit(&of),
        index_(index),
        error_(
            "Expected the gradients of model->parameters(), but something got "
            "those of the module's own parameters " +
            of.name() +
            ", which have none; give model->parameters() to the optimizer, "
            "clip by model->clip_grad_norm_, and reset by zero_grad() of the "
            "optimizer or the model") {
    release_data_and_set_meta_custom_data_ptr_error_msg_(error_);
  }

  /// Module::zero_grad detaches a gradient before it resets the gradient.
  at::Tensor before_operator(const c10::FunctionSchema& op,
                             bool /*writes*/) const override {
    TORCH_CHECK(op.name() == "aten::detach", error_);
    if (unit != nullptr) {
      unit->leaves()[index_].mutable_grad().reset();
    }
    return {};
  }

  const Unit* unit;

 private:
  const size_t index_;
  const std::string error_;
};

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

/// No memory: the leaves' gradients after a local pass.
class NoMeanStorage : public WatchedStorage {
 public:
  explicit NoMeanStorage(const Unit& unit)
      : WatchedStorage(use_byte_size_t(),
                       static_cast<int64_t>(unit.slab().nbytes()),
                       at::DataPtr(nullptr, unit.slab().device()),
                       /*allocator=*/nullptr,
                       /*resizable=*/false),
        error_(
            "Expected the last pass before a step outside of a "
            "ddp::NoSyncGuard, which averages the gradients of all passes, but "
            "something got the gradients of " +
            unit.name() +
            " after passes under the guard alone; make that pass, or drop the "
            "gradients by zero_grad() with set_to_none") {
    release_data_and_set_meta_custom_data_ptr_error_msg_(error_);
  }

  /// Optimizer::zero_grad detaches a gradient before it resets the gradient.
  at::Tensor before_operator(const c10::FunctionSchema& op,
                             bool /*writes*/) const override {
    TORCH_CHECK(op.name() == "aten::detach_", error_);
    return {};
  }

 private:
  const std::string error_;
};

/// Memory of the leaves' gradients.
class ShardGradientStorage : public WatchedStorage {
 public:
  explicit ShardGradientStorage(const at::Tensor& memory)
      : WatchedStorage(use_byte_size_t(),
                       static_cast<int64_t>(memory.nbytes()),
                       pointer_to(memory),
                       /*allocator=*/nullptr,
                       /*resizable=*/false) {}

  /// Refuses the operators with which a norm, or an optimizer that combines
  /// elements, begins.
  at::Tensor before_operator(const c10::FunctionSchema& op,
                             bool /*writes*/) const override {
    refuse_over_all(op, "gradient");
    return {};
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
  storage_ = c10::make_intrusive<UnitStorage>(this, bytes(), slab_.device());
  const auto like = at::empty({0}, options());
  leaf_storage_ = c10::make_intrusive<SlabStorage>(this, slab_);
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
    tensor.set_data(over(storage_));
    if (plan.trains) {
      hooks_.push_back(
          tensor.register_hook([this, i](const at::Tensor& /*grad*/) {
            owner_.clear_gradients();
            drop_local(i);
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
  set_access_throws(*leaf_storage_, true);
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
  storage_->set_memory(whole.defined() ? pointer_to(whole)
                                       : at::DataPtr(nullptr, slab_.device()));
}

void Unit::make_writable() {
  set_memory({});
  private_.reset();
  set_access_throws(*leaf_storage_, false);
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
}

const at::Tensor& Unit::new_gradients() {
  if (!gradients_.defined()) {
    // At once, so that no temporary tensors lie between them in the heap.
    for (const auto& unit : owner_.units()) {
      unit->renew_gradients();
    }
  } else if (gradients_.storage().use_count() > 1) {
    renew_gradients();  // the program holds the last pass's gradients
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

void Unit::keep_local(size_t parameter) {
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
