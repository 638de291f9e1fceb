#pragma once

#include <string_view>

#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// Reads the format that torch.save wrote before PyTorch 1.6, and still does
/// with `_use_new_zipfile_serialization=False`: pickles one after another, then
/// the storages. It has no check sums: of damage to a storage nobody can tell.
///
/// @param file  all of it. Storages are copied out of it.
/// @throws c10::Error that says what is wrong, and nothing else.
c10::IValue read_legacy_file(std::string_view file);

}  // namespace ddp::detail
