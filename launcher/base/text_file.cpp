#include "launcher/base/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "launcher/base/fd.h"

namespace launcher {

std::string read_text(const std::string& path, size_t most) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  std::string text;
  std::array<char, 4096> piece;
  while (file && text.size() < most) {
    const size_t wanted = std::min(piece.size(), most - text.size());
    const ssize_t size = retry_interrupted(
        [&] { return ::read(file.get(), piece.data(), wanted); });
    if (size == 0) {
      break;
    }
    if (size < 0) {
      return "";  // as for a process that has just ended
    }
    text.append(piece.data(), static_cast<size_t>(size));
  }
  return text;
}

}  // namespace launcher
