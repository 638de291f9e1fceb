#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/pickle/zip_reader.h"
#include "ddp/exported/json_value.h"

namespace ddp::detail {

// Convert numbers and devices of the file into arguments of operators. Throw
// c10::Error for unknown and unsupported values, such as the layouts of sparse
// tensors.
c10::IValue exported_dtype(const JsonValue& number);
c10::IValue exported_layout(const JsonValue& number);
c10::IValue exported_memory_format(const JsonValue& number);
c10::IValue exported_device(const JsonValue& device);

/// A tensor in a file of torch.export.save.
struct ExportedTensor {
  at::Tensor value;    ///< on the CPU; tensors of one record share its memory
  std::string record;  ///< name of the record with its storage
  c10::Device device = c10::Device(c10::kCPU);  ///< at the export
};

/// A file of torch.export.save, of PyTorch 2.10 or later. Reads lazily.
class ExportedArchive {
 public:
  /// @throws c10::Error if `path` is another kind of file, or damaged.
  explicit ExportedArchive(const std::string& path);

  /// The program, of the schema's major version 8.
  JsonValue program() const;

  /// The parameters, buffers and constants of the program, by their names.
  /// @throws c10::Error for pickled, sparse and quantised tensors, and for
  ///   sizes and strides outside of the record.
  std::map<std::string, ExportedTensor> tensors() const;

  /// Writes the same file with other values of tensors, by the names of
  /// `tensors`, and replaces `path` as a whole.
  /// @throws c10::Error that names the file and the failed operation.
  void save(const std::string& path,
            const std::map<std::string, at::Tensor>& values) const;

 private:
  JsonValue read_json(const std::string& record) const;

  ZipReader zip_;
};

}  // namespace ddp::detail
