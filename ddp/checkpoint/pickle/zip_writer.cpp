#include "ddp/checkpoint/pickle/zip_writer.h"

#include <caffe2/serialize/inline_container.h>

namespace ddp::detail {

void write_zip(AtomicFile& file,
               const std::function<void(const AddRecord&)>& add_all) {
  caffe2::serialize::PyTorchStreamWriter archive(
      [&file](const void* data, size_t size) {
        file.write(data, size);
        return size;
      });
  add_all([&](const std::string& name, std::string_view bytes) {
    archive.writeRecord(name, bytes.empty() ? "" : bytes.data(), bytes.size());
  });
  archive.writeEndOfFile();
}

}  // namespace ddp::detail
