#pragma once

#include <cstddef>
#include <cstdint>

namespace ddp::detail {

/// Returns the check sum of zip files (CRC-32/ISO-HDLC). LibTorch's zip reader
/// is built without it.
uint32_t crc32(const void* data, size_t size);

}  // namespace ddp::detail
