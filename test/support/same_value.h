#pragma once

#include <cstring>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/pickle/python_value.h"

namespace ddp::test {

/// Returns true if two tensors have equal values in all properties that a file
/// stores, and bitwise equal storages.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto size = a.storage().nbytes();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() &&
         a.storage_offset() == b.storage_offset() &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg() &&
         size == b.storage().nbytes() &&
         (size == 0 ||
          std::memcmp(a.storage().data(), b.storage().data(), size) == 0);
}

/// Same as above, for a tree of values. Dicts must have the same order.
inline bool same_value(const c10::IValue& a, const c10::IValue& b) {
  const auto all_same = [](const auto& x, const auto& y) {
    bool same = x.size() == y.size();
    for (size_t i = 0; same && i < x.size(); ++i) {
      same = same_value(x[i], y[i]);
    }
    return same;
  };
  if (a.tagKind() != b.tagKind()) {
    return false;
  }
  if (a.isTensor()) {
    return same_bits(a.toTensor(), b.toTensor());
  }
  if (a.isList()) {
    return all_same(a.toListRef(), b.toListRef());
  }
  if (a.isTuple()) {
    return all_same(a.toTupleRef().elements(), b.toTupleRef().elements());
  }
  if (a.isGenericDict()) {
    const auto x = a.toGenericDict();
    const auto y = b.toGenericDict();
    bool same = x.size() == y.size();
    for (auto i = x.begin(), j = y.begin(); same && i != x.end(); ++i, ++j) {
      same =
          same_value(i->key(), j->key()) && same_value(i->value(), j->value());
    }
    return same;
  }
  return a.isCapsule() ? detail::name_of(a) == detail::name_of(b) : a == b;
}

}  // namespace ddp::test
