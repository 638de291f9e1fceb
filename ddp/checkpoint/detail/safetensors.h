#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/checkpoint/detail/rectangles.h"

// Files in the format of the library safetensors, with the metadata by which
// PyTorch's HuggingFaceStorageWriter says which part of a tensor is in a file.
namespace ddp::detail {

/// A part of a tensor to write.
struct PieceToWrite {
  std::string name;  ///< of the tensor
  std::vector<int64_t> offsets;
  at::Tensor elements;  ///< on any device, with any strides
};

/// Writes a file and syncs it; see `AtomicFile`. Each tensor has one part.
/// @throws c10::Error if the format lacks a dtype; std::system_error.
void write_safetensors(const std::string& path,
                       std::vector<PieceToWrite> pieces);

/// A part of a tensor in a file.
struct SavedPiece {
  std::string name;  ///< of the tensor
  at::ScalarType dtype = at::kFloat;
  Rectangle place;
  /// The bytes, in the memory of the mapped file: the sizes of `place`, and the
  /// bytes of an element as the last dimension, since a file may not align
  /// them.
  at::Tensor bytes;
};

struct SafetensorsFile {
  std::vector<SavedPiece> pieces;
  std::string content_id;  ///< of the header and the size
};

/// Maps a file. A file without PyTorch's metadata has whole tensors. For any
/// content, the function needs about 100 bytes for each byte of the header.
/// The bytes of the tensors have no check sums. If the file is cut off in place
/// after this call, access to the bytes ends the process by SIGBUS.
/// @throws c10::Error with the reason if the file is not whole and valid.
SafetensorsFile read_safetensors(const std::string& path);

}  // namespace ddp::detail
