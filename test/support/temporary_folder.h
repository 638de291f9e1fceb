#pragma once

#include <ftw.h>
#include <glob.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddp::test {

/// Returns the paths of a folder's files, sorted.
inline std::vector<std::string> files_in(const std::string& folder) {
  glob_t found{};
  ::glob((folder + "/*").c_str(), 0, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv,
                                 found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

/// A new folder that is removed with this object. (Does not use
/// std::filesystem: the wheel of LibTorch exports parts of another compiler's
/// version, and remove_all crashes.)
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

  /// Returns the number of files in the folder.
  size_t size() const { return files_in(path_).size(); }

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
