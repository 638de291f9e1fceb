#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace ddp::detail {

/// Creates a placeholder of a Python class, function or instance that is not
/// rebuilt. The placeholder of a storage has the storage's bytes.
c10::IValue python_object(std::string name, at::Tensor bytes = {});

/// Returns the dotted name of a `python_object`; empty for any other value.
std::string name_of(const c10::IValue& value);

/// Returns the bytes of a storage's `python_object`; an undefined tensor for
/// any other value.
at::Tensor bytes_of(const c10::IValue& value);

/// Returns an empty dict or list for values of any type, as in Python.
c10::IValue new_dict();
c10::IValue new_list();

/// Converts a state, with all tensors on the CPU, to bytes for another rank.
std::string to_bytes(const c10::IValue& state);
/// Returns the state of `to_bytes`.
c10::IValue from_bytes(const std::string& bytes);

/// Returns the type of a value for error messages: "a dict", "a tensor",
/// "None", "a Python object of argparse.Namespace".
std::string describe(const c10::IValue& value);

/// Returns the dtype of a Python storage class ("torch.FloatStorage",
/// "torch.storage.UntypedStorage"); std::nullopt for an unknown class.
std::optional<at::ScalarType> dtype_of_storage(const std::string& dotted);

/// Returns the name of a dtype's storage class in Python's module torch;
/// std::nullopt for the newer dtypes: their tensors are in an UntypedStorage.
std::optional<std::string> storage_class(at::ScalarType dtype);

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
  void expect(bool is_of_type,
              const char* type,
              const std::string& key,
              const c10::IValue& value) const;

  std::string where_;
  c10::Dict<c10::IValue, c10::IValue> dict_;
};

}  // namespace ddp::detail
