#include "samples/support/files.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#ifdef DDP_SAMPLES_ZLIB
#include <zlib.h>
#endif

namespace samples {
namespace {

void check_is_file(const std::filesystem::path& path) {
  std::error_code error;
  TORCH_CHECK(std::filesystem::is_regular_file(path, error),
              "Expected a file at ",
              path.string(),
              ", but got ",
              error ? error.message() : "something else",
              ".");
}

}  // namespace

#ifdef DDP_SAMPLES_ZLIB

std::vector<uint8_t> read_file(const std::filesystem::path& path) {
  check_is_file(path);
  // zlib returns the content of a file that is not gzip unchanged.
  const std::unique_ptr<gzFile_s, decltype(&gzclose)> file(
      gzopen(path.c_str(), "rb"), &gzclose);
  TORCH_CHECK(file, "Cannot open ", path.string(), ": ", std::strerror(errno));
  std::vector<uint8_t> bytes;
  constexpr size_t kChunk = size_t{1} << 20;
  for (int got = 1; got > 0;) {
    const size_t size = bytes.size();
    bytes.resize(size + kChunk);
    got = gzread(file.get(), bytes.data() + size, kChunk);
    bytes.resize(size + static_cast<size_t>(got > 0 ? got : 0));
  }
  int code = Z_OK;
  const char* reason = gzerror(file.get(), &code);
  TORCH_CHECK(code == Z_OK,
              "Expected a whole gzip file at ",
              path.string(),
              ", but got: ",
              reason,
              ". Download it again.");
  return bytes;
}

#else

std::vector<uint8_t> read_file(const std::filesystem::path& path) {
  check_is_file(path);
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "Cannot open ", path.string(), ": ", std::strerror(errno));
  std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  const bool gzip = bytes.size() > 1 && bytes[0] == 0x1f && bytes[1] == 0x8b;
  TORCH_CHECK(!gzip,
              "Expected an unpacked file, but ",
              path.string(),
              " is a gzip file and this program was built without zlib. Run: "
              "gunzip ",
              path.string());
  return bytes;
}

#endif

std::filesystem::path find_in_folder(const std::filesystem::path& folder,
                                     const std::vector<std::string>& names,
                                     const std::string& data_set) {
  TORCH_CHECK(std::filesystem::is_directory(folder),
              "Expected a folder with ",
              data_set,
              " at ",
              folder.string(),
              ", but there is none. Name it with --data.");
  for (const auto& name : names) {
    if (std::filesystem::exists(folder / name)) {
      return folder / name;
    }
  }
  TORCH_CHECK(false,
              "Expected ",
              c10::Join(" or ", names),
              " in ",
              folder.string(),
              ", but it is not there. Name the folder with --data.");
}

}  // namespace samples
