#pragma once

#include <cstddef>
#include <cstdint>

namespace ddp::detail {

/// The check sum of zip files (CRC-32/ISO-HDLC) of `size` bytes. LibTorch's zip
/// reader is built without it.
uint32_t crc32(const void* data, size_t size);

}  // namespace ddp::detail
