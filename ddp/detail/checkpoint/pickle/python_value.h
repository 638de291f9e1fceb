#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// A Python class, function or instance that is not rebuilt here: only its
/// name is known.
c10::IValue python_object(const std::string& name);

/// The dotted name of a `python_object`; empty for any other value.
std::string name_of(const c10::IValue& value);

/// An empty dict or list that takes values of any kind, as Python's do.
c10::IValue new_dict();
c10::IValue new_list();

/// The int of a pickle's LONG1, little endian; beyond 64 bits a
/// `python_object`.
c10::IValue python_int(std::string_view bytes);

/// Adds to a list, or keys and values in turn to a dict. A `python_object` may
/// stand for either; its items are dropped, as are items of a dict whose key is
/// no int, float, bool or str.
///
/// @throws c10::Error when `container` is something else.
void append_items(const c10::IValue& container,
                  const std::vector<c10::IValue>& items);
void set_items(const c10::IValue& container,
               const std::vector<c10::IValue>& items);

/// What a pickle's call of a function gives. Only those that tensors and dicts
/// are made with are known; of any other the result is a `python_object`.
///
/// @throws c10::Error when the arguments cannot be the function's.
c10::IValue call_python(const std::string& function,
                        const std::vector<c10::IValue>& arguments);

/// What a value is, for error messages: "a dict", "a tensor", "None", "a Python
/// object of argparse.Namespace".
std::string describe(const c10::IValue& value);

}  // namespace ddp::detail
