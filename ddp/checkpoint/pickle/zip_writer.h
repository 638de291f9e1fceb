#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "ddp/base/atomic_file.h"

namespace ddp::detail {

/// Adds a record to a zip file.
using AddRecord =
    std::function<void(const std::string& name, std::string_view bytes)>;

/// Writes a zip file as torch.save does, with the records that `add_all` adds
/// and the records of the format itself ("version", ".data/...").
void write_zip(AtomicFile& file,
               const std::function<void(const AddRecord&)>& add_all);

}  // namespace ddp::detail
