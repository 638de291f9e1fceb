#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include <c10/util/Exception.h>

namespace ddp::detail {

inline constexpr const char* kCutOff =
    "it is cut off, damaged, or not a file of torch.save";
inline constexpr const char* kBigEndian =
    "it was written on a big-endian machine";

/// Reads from the front of bytes that it does not own. Numbers are little
/// endian. Throws c10::Error if fewer bytes are left than requested.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  std::string_view rest() const { return rest_; }

  std::string_view bytes(uint64_t size) {
    TORCH_CHECK(size <= rest_.size(), kCutOff);
    const auto taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }

  /// Reads a line and its end; returns it without the end.
  std::string_view line() {
    const auto end = rest_.find('\n');
    TORCH_CHECK(end != std::string_view::npos, kCutOff);
    return bytes(end + 1).substr(0, end);
  }

 private:
  std::string_view rest_;
};

}  // namespace ddp::detail
