#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// Creates a placeholder of a Python class, function or instance that is not
/// rebuilt. It has a name and for some types a content: a tensor with a
/// storage's bytes; a string with the bytes of a `bytes` object or of a large
/// int.
c10::IValue python_object(std::string name, c10::IValue content = {});

/// Returns the dotted name of a `python_object`; empty for any other value.
std::string name_of(const c10::IValue& value);

/// Returns the content of a `python_object`; None for any other value.
c10::IValue content_of(const c10::IValue& value);

/// Replaces the content of a `python_object` for all its references.
void set_content(const c10::IValue& object, c10::IValue content);

/// Returns an empty dict or list for values of any type, as in Python.
c10::IValue new_dict();
c10::IValue new_list();

/// Returns the int of a pickle's LONG1 or LONG4, little endian; a
/// `python_object` if it has more than 64 bits.
c10::IValue python_int(std::string_view bytes);

/// Appends items to a list, or inserts alternating keys and values into a dict.
/// For a `python_object` as container the items are dropped. Dict items whose
/// keys are not int, float, bool or str become a single `python_object` under a
/// name that describes them.
///
/// @throws c10::Error if `container` has another type.
void append_items(const c10::IValue& container,
                  const std::vector<c10::IValue>& items);
void set_items(const c10::IValue& container,
               const std::vector<c10::IValue>& items);

/// Returns the type of a value for error messages: "a dict", "a tensor",
/// "None", "a Python object of argparse.Namespace".
std::string describe(const c10::IValue& value);

}  // namespace ddp::detail
