#include "launcher/text_file.h"

#include <fstream>
#include <iterator>

namespace launcher {

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace launcher
