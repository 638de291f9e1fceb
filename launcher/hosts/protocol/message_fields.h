#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "launcher/hosts/protocol/message.h"

namespace launcher {

/// Reads the members of a JSON object from another host. A member that is
/// missing, has another type or is out of bounds is read as the least value,
/// and makes the object invalid.
class MessageFields {
 public:
  static constexpr size_t kLongestName = 256;

  /// @param object  must outlive this object
  explicit MessageFields(const nlohmann::json& object) : object_(object) {}

  bool are_valid() const { return are_valid_; }
  bool has(const char* name) const;

  int64_t integer(const char* name, int64_t least, int64_t most);
  int count(const char* name, int least = 0, int most = kLargestCount);
  bool truth(const char* name);
  std::string text(const char* name, size_t most = kLongestName);

 private:
  template <typename T>
  T fail(T value) {
    are_valid_ = false;
    return value;
  }

  const nlohmann::json& object_;
  bool are_valid_ = true;
};

}  // namespace launcher
