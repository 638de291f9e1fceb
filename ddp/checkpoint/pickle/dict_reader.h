#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// Reads the entries of a dict that came from a file. Each getter throws
/// c10::Error that names the entry when it is missing or of another kind.
class DictReader {
 public:
  /// @param where  the dict's own place, for messages: "optimizer".
  DictReader(const c10::IValue& value, std::string where);

  bool has(const std::string& key) const;
  /// None and missing are the same.
  bool has_value(const std::string& key) const;

  c10::IValue get(const std::string& key) const;
  /// An int, a float of the same value, or a tensor of one element that holds
  /// either.
  int64_t integer(const std::string& key) const;
  /// A float or int, or a tensor of one element.
  double number(const std::string& key) const;
  /// A list or tuple of such.
  std::vector<double> numbers(const std::string& key) const;
  bool boolean(const std::string& key) const;
  at::Tensor tensor(const std::string& key) const;
  std::vector<c10::IValue> list(const std::string& key) const;
  DictReader dict(const std::string& key) const;

  const c10::Dict<c10::IValue, c10::IValue>& entries() const { return dict_; }

 private:
  std::string place(const std::string& key) const;

  std::string where_;
  c10::Dict<c10::IValue, c10::IValue> dict_;
};

}  // namespace ddp::detail
