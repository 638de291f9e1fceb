#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// A Python class, function or instance that is not rebuilt here: its name is
/// known, and of some what they hold: a storage's bytes, as a tensor; those of
/// a `bytes` or of a large int, as a string.
c10::IValue python_object(std::string name, c10::IValue content = {});

/// The dotted name of a `python_object`; empty for any other value.
std::string name_of(const c10::IValue& value);

/// What a `python_object` holds; None for any other value.
c10::IValue content_of(const c10::IValue& value);

/// Replaces what a `python_object` holds, wherever it is referred to.
void set_content(const c10::IValue& object, c10::IValue content);

/// An empty dict or list that takes values of any kind, as Python's do.
c10::IValue new_dict();
c10::IValue new_list();

/// The int of a pickle's LONG1, little endian; beyond 64 bits a
/// `python_object`.
c10::IValue python_int(std::string_view bytes);

/// Adds to a list, or keys and values in turn to a dict. A `python_object` may
/// stand for either; its items are dropped. Items of a dict whose keys are no
/// int, float, bool or str become one `python_object` under a name that says
/// so.
///
/// @throws c10::Error when `container` is something else.
void append_items(const c10::IValue& container,
                  const std::vector<c10::IValue>& items);
void set_items(const c10::IValue& container,
               const std::vector<c10::IValue>& items);

/// What a value is, for error messages: "a dict", "a tensor", "None", "a Python
/// object of argparse.Namespace".
std::string describe(const c10::IValue& value);

}  // namespace ddp::detail
