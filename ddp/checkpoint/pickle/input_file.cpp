#include "ddp/checkpoint/pickle/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ddp/checkpoint/pickle/byte_reader.h"

namespace ddp::detail {

InputFile::InputFile(const std::string& path)
    : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  TORCH_CHECK(file_, std::strerror(errno));
  struct stat status {};
  TORCH_CHECK(::fstat(file_.get(), &status) == 0, std::strerror(errno));
  TORCH_CHECK(S_ISREG(status.st_mode), "it is not a regular file");
  size_ = static_cast<uint64_t>(status.st_size);
}

void InputFile::read(uint64_t offset, void* out, uint64_t size) const {
  TORCH_CHECK(offset <= size_ && size <= size_ - offset, kCutOff);
  auto* bytes = static_cast<char*>(out);
  while (size > 0) {
    const auto count = retry_interrupted([&] {
      return ::pread(file_.get(), bytes, size, static_cast<off_t>(offset));
    });
    TORCH_CHECK(count >= 0, std::strerror(errno));
    TORCH_CHECK(count > 0, kCutOff);  // truncated meanwhile
    offset += static_cast<uint64_t>(count);
    bytes += count;
    size -= static_cast<uint64_t>(count);
  }
}

std::string InputFile::read(uint64_t offset, uint64_t size) const {
  // Checked before the allocation, since `size` may be any number.
  TORCH_CHECK(size <= size_, kCutOff);
  std::string bytes(size, '\0');
  read(offset, bytes.data(), size);
  return bytes;
}

}  // namespace ddp::detail
