#include "launcher/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "launcher/fd.h"

namespace launcher {

std::string read_text(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  std::string text;
  std::array<char, 4096> piece;
  while (file) {
    const ssize_t size = retry_interrupted(
        [&] { return ::read(file.get(), piece.data(), piece.size()); });
    if (size == 0) {
      return text;
    }
    if (size < 0) {
      break;  // as of a process that has just gone
    }
    text.append(piece.data(), static_cast<size_t>(size));
  }
  return "";
}

}  // namespace launcher
