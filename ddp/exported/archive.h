#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "ddp/checkpoint/pickle/zip_reader.h"
#include "ddp/exported/json_value.h"

namespace ddp::detail {

// Values as torch.export writes them, and as operators take them. Unknown and
// unsupported ones, such as the layouts of sparse tensors, are errors.
c10::IValue exported_dtype(const JsonValue& number);
c10::IValue exported_layout(const JsonValue& number);
c10::IValue exported_memory_format(const JsonValue& number);
c10::IValue exported_device(const JsonValue& device);

/// A tensor in a file of torch.export.save.
struct ExportedTensor {
  at::Tensor value;    ///< on the CPU; tensors of one record share its memory
  std::string record;  ///< that holds its storage
  c10::Device device = c10::Device(c10::kCPU);  ///< when it was exported
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
  void save(const std::string& path,
            const std::map<std::string, at::Tensor>& values) const;

 private:
  JsonValue read_json(const std::string& record) const;
  void add_tensors(const std::string& folder,
                   const std::string& config,
                   std::map<std::string, ExportedTensor>& tensors) const;

  ZipReader zip_;
};

}  // namespace ddp::detail
