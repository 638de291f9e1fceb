#include "test/samples/files.h"

#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace samples::test {

namespace fs = std::filesystem;

void write(const fs::path& file, const std::vector<uint8_t>& bytes) {
  write(file, std::string(bytes.begin(), bytes.end()));
}

void write(const fs::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  if (!stream.flush()) {
    throw std::runtime_error("cannot write " + file.string());
  }
}

void gzip(const fs::path& file) {
  const std::string command = "gzip '" + file.string() + "'";
  if (std::system(command.c_str()) != 0) {
    throw std::runtime_error(command + " failed");
  }
}

}  // namespace samples::test
