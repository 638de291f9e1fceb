#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/checkpoint/pickle/zip_reader.h"
#include "ddp/exported/json_value.h"

namespace ddp::detail {

/// Returns the dtype with this number in torch.export's schema.
/// @throws c10::Error for dtypes of quantised tensors and unknown numbers.
c10::ScalarType exported_dtype(const JsonValue& number);

/// @throws c10::Error unless the number is that of the strided layout.
void check_strided(const JsonValue& layout);

/// A device as torch.export writes it.
c10::Device exported_device(const JsonValue& device);

/// A tensor in a file of torch.export.save.
struct ExportedTensor {
  at::Tensor value;    ///< on the CPU; tensors of one record share its memory
  std::string record;  ///< that holds its storage
  bool requires_grad = false;
  c10::Device device = c10::Device(c10::kCPU);  ///< when it was exported
};

/// A file of torch.export.save, of PyTorch 2.10 or later. Reads lazily.
class ExportedArchive {
 public:
  /// @throws c10::Error if `path` is another kind of file, or damaged.
  explicit ExportedArchive(const std::string& path);

  /// The program of this name ("model"), of the schema's major version 8.
  JsonValue program(const std::string& name) const;

  /// The parameters, buffers and constants of a program, by their names.
  /// @throws c10::Error for pickled, sparse and quantised tensors, and for
  ///   sizes and strides outside of the record.
  std::map<std::string, ExportedTensor> tensors(
      const std::string& program) const;

  /// Writes the same file with other values of tensors, by the names of
  /// `tensors`, and replaces `path` as a whole.
  void save(const std::string& path,
            const std::string& program,
            const std::map<std::string, at::Tensor>& values) const;

 private:
  void add_tensors(const std::string& folder,
                   const std::string& config,
                   std::map<std::string, ExportedTensor>& tensors) const;

  ZipReader zip_;
};

}  // namespace ddp::detail
