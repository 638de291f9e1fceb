#pragma once

#include <cstddef>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

#include "ddp/shard/operator_watch.h"
#include "ddp/tensors/shard_storage.h"

namespace ddp::detail {

class Unit;

/// Memory of a unit's parameters, or none. Before an operator reads the
/// parameters, the owner of the unit gives them memory. Writes throw, unless
/// the memory is private.
class UnitStorage : public WatchedStorage {
 public:
  explicit UnitStorage(Unit* of);

  at::Tensor before_operator(const c10::FunctionSchema& op,
                             bool writes) const override;

  Unit* unit;  ///< null after its end

 private:
  const std::string name_;
};

/// Memory of the leaves. Operators throw with which a norm, a decision about
/// all elements or an initialisation begins.
class SlabStorage : public WatchedStorage, public ShardStorage {
 public:
  explicit SlabStorage(const Unit* of);

  at::Tensor before_operator(const c10::FunctionSchema& op,
                             bool writes) const override;

  const Unit* unit;  ///< null after its end
};

/// Memory of the leaves' gradients. Operators throw with which a norm, or an
/// optimizer that combines elements, begins.
class ShardGradientStorage : public WatchedStorage {
 public:
  explicit ShardGradientStorage(const at::Tensor& memory);

  at::Tensor before_operator(const c10::FunctionSchema& op,
                             bool writes) const override;
};

/// No memory: the leaves' gradients after a local pass. Any operator throws but
/// the one by which an optimizer's zero_grad begins.
class NoMeanStorage : public WatchedStorage {
 public:
  explicit NoMeanStorage(const Unit& unit);

  at::Tensor before_operator(const c10::FunctionSchema& op,
                             bool writes) const override;
};

/// No memory: the gradient of a parameter after a pass. Any operator throws but
/// the one by which a module's zero_grad begins; that one resets the leaf's
/// gradient, too.
class NoGradientStorage : public WatchedStorage {
 public:
  NoGradientStorage(const Unit& of, size_t parameter);

  at::Tensor before_operator(const c10::FunctionSchema& op,
                             bool writes) const override;

  const Unit* unit;  ///< null after its end

 private:
  const size_t parameter_;
};

}  // namespace ddp::detail
