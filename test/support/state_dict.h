#pragma once

#include <string>

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

namespace ddp::test {

/// Returns an entry of a state.
inline c10::IValue entry(const c10::IValue& state, const std::string& key) {
  return state.toGenericDict().at(key);
}

/// Returns a copy of a state with another value of an entry.
inline c10::IValue changed(const c10::IValue& state,
                           const std::string& key,
                           const c10::IValue& value) {
  auto copy = state.toGenericDict().copy();
  copy.insert_or_assign(key, value);
  return copy;
}

/// Returns a copy of a state without an entry.
inline c10::IValue without(const c10::IValue& state, const std::string& key) {
  auto copy = state.toGenericDict().copy();
  TORCH_CHECK(copy.erase(key) == 1, "no entry ", key);
  return copy;
}

}  // namespace ddp::test
