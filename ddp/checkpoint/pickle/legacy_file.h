#pragma once

#include <string_view>

#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// Reads the format of torch.save before PyTorch 1.6, which is still available
/// with `_use_new_zipfile_serialization=False`: several pickles, then the
/// storages. The format has no check sums, so damage to a storage cannot be
/// detected.
///
/// @param file  the whole file. Storages are copied out of it.
/// @throws c10::Error with only the reason.
c10::IValue read_legacy_file(std::string_view file);

}  // namespace ddp::detail
