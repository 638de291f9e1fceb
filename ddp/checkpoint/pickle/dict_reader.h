#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// Reads the entries of a dict from a file. Each getter throws c10::Error with
/// the entry's name if the entry is missing or of another type.
class DictReader {
 public:
  /// @param where  path of the dict in the file, for messages: "optimizer".
  /// @throws c10::Error if `value` is no dict.
  DictReader(const c10::IValue& value, std::string where);

  bool has(const std::string& key) const;
  /// Returns false if the entry is missing or None.
  bool has_value(const std::string& key) const;

  c10::IValue get(const std::string& key) const;
  /// Reads an int, a float with an integral value, or a tensor with one element
  /// of either.
  int64_t integer(const std::string& key) const;
  /// Reads a float or int, or a tensor with one element of either.
  double number(const std::string& key) const;
  /// Reads a list or tuple of numbers.
  std::vector<double> numbers(const std::string& key) const;
  bool boolean(const std::string& key) const;
  at::Tensor tensor(const std::string& key) const;
  /// Reads a list or tuple.
  std::vector<c10::IValue> list(const std::string& key) const;
  DictReader dict(const std::string& key) const;

  const c10::Dict<c10::IValue, c10::IValue>& entries() const { return dict_; }

 private:
  std::string place(const std::string& key) const;

  std::string where_;
  c10::Dict<c10::IValue, c10::IValue> dict_;
};

}  // namespace ddp::detail
