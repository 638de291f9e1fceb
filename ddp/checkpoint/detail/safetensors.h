#pragma once

#include <string>
#include <vector>

#include "ddp/checkpoint/detail/tensor_pieces.h"

// Files in the format of the library safetensors, with the metadata by which
// PyTorch's HuggingFaceStorageWriter says which part of a tensor is in a file.
namespace ddp::detail {

/// Name of the entry of `SafetensorsFile::save_id`, and of an equal one in a
/// folder's training.pt. A copy that was made during a save may have files of
/// two saves.
inline constexpr const char* kSaveId = "save_id";

/// The content of a file.
struct SafetensorsFile {
  std::vector<TensorPiece> pieces;
  std::string save_id;  ///< equal in the files of one save; "" in Python's
};

/// Writes a file and syncs it; see `AtomicFile`. Each tensor has one piece, on
/// any device, with any strides.
/// @throws c10::Error if the format lacks a dtype; std::system_error.
void write_safetensors(const std::string& path, SafetensorsFile content);

/// Maps a file and returns its content, in its memory. A file without PyTorch's
/// metadata has whole tensors. Tensors that are not aligned in the file are
/// copied. For any content, the function needs at most the memory of these, and
/// about 100 bytes for each byte of the header. The bytes of the tensors have
/// no check sums. If the file is cut off in place after this call, access to
/// the bytes ends the process by SIGBUS.
/// @throws c10::Error with the reason if the file is not whole and valid.
SafetensorsFile read_safetensors(const std::string& path);

}  // namespace ddp::detail
