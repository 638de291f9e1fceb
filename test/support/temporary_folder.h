#pragma once

#include <ftw.h>
#include <glob.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace ddp::test {

/// A new folder that goes with this object. (Without std::filesystem: the wheel
/// of LibTorch exports parts of another compiler's, and remove_all crashes.)
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const char* parent = std::getenv("TMPDIR");
    path_ =
        std::string(parent != nullptr ? parent : "/tmp") + "/ddp_test.XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) {
      throw std::runtime_error("no temporary folder: " + path_);
    }
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    const auto remove = [](const char* path, const struct stat*, int, FTW*) {
      return std::remove(path);
    };
    ::nftw(path_.c_str(), remove, 16, FTW_DEPTH | FTW_PHYS);
  }

  const std::string& path() const { return path_; }

  std::string operator/(const std::string& name) const {
    return path_ + "/" + name;
  }

  /// Number of files in it.
  size_t size() const {
    glob_t found{};
    ::glob((path_ + "/*").c_str(), 0, nullptr, &found);
    const size_t count = found.gl_pathc;
    ::globfree(&found);
    return count;
  }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace ddp::test
