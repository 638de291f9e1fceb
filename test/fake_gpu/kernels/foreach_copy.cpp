// Decodes _foreach_copy_: (metadata, Copy<to, from>, ...). The metadata assign
// to each block of the grid a tensor and a chunk of 65,536 elements in it.
#include <algorithm>
#include <cstring>
#include <vector>

#include "test/fake_gpu/engine/memory.h"
#include "test/fake_gpu/kernels/decode.h"
#include "test/fake_gpu/kernels/element.h"
#include "test/fake_gpu/kernels/template_name.h"

namespace fake_gpu {
namespace {

constexpr int64_t kChunk = 65536;
constexpr size_t kMaxTensors = 64;  // of two lists in one launch
constexpr size_t kMaxBlocks = 320;

/// Same layout as LibTorch's TensorListMetadata<2>.
struct Metadata {
  char* addresses[2][kMaxTensors];
  int64_t counts[kMaxTensors];
  unsigned char tensor_of_block[kMaxBlocks];
  int chunk_of_block[kMaxBlocks];
};

struct Part {
  const char* from;
  char* to;
  int64_t count;
};

void copy(const Part& part, ScalarType to, ScalarType from) {
  const char* source = host_address(part.from);
  char* target = host_address(part.to);
  if (to == from) {
    std::memcpy(target, source, part.count * size_of(to));
    return;
  }
  for (int64_t i = 0; i < part.count; ++i) {
    store(target + i * size_of(to), to, load(source + i * size_of(from), from));
  }
}

}  // namespace

std::function<bool()> decode_foreach_copy(const std::string& name,
                                          void** arguments,
                                          unsigned blocks) {
  const auto types = template_arguments(name, "at::native::Copy");
  if (types.size() < 2 || blocks > kMaxBlocks) {
    return nullptr;
  }
  const auto to = type_named(types[0]);
  const auto from = type_named(types[1]);
  // Including complex types.
  const bool as_bytes = to == from && size_of(to) > 0;
  if (!as_bytes && (!is_number(to) || !is_number(from))) {
    return nullptr;
  }
  const auto& metadata = *static_cast<const Metadata*>(arguments[0]);
  std::vector<Part> parts;
  for (unsigned block = 0; block < blocks; ++block) {
    const auto tensor = metadata.tensor_of_block[block];
    const int64_t begin = metadata.chunk_of_block[block] * kChunk;
    parts.push_back({metadata.addresses[0][tensor] + begin * size_of(from),
                     metadata.addresses[1][tensor] + begin * size_of(to),
                     std::min(kChunk, metadata.counts[tensor] - begin)});
  }
  return [parts = std::move(parts), to, from] {
    for (const Part& part : parts) {
      copy(part, to, from);
    }
    return true;
  };
}

}  // namespace fake_gpu
