#include "samples/support/files.h"

#include <fstream>
#include <iterator>

#include "test/samples/files.h"
#include "test/support/catch.h"
#include "test/support/temporary_folder.h"

using ddp::test::TemporaryFolder;
using samples::read_file;

namespace read_file_test {

// More than one chunk of the reader, and not a multiple of it.
std::vector<uint8_t> pattern() {
  std::vector<uint8_t> bytes(3'000'001);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(i * i >> 5);
  }
  return bytes;
}

TEST_CASE("read_file returns every byte") {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "data";
  samples::test::write(file, pattern());
  CHECK(read_file(file) == pattern());
  samples::test::write(file, std::string());
  CHECK(read_file(file).empty());
}

TEST_CASE("read_file names a file that is not there") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(read_file(folder / "none"),
                    Catch::Contains("Expected a file at " + (folder / "none")));
  CHECK_THROWS_WITH(read_file(folder / ""),
                    Catch::Contains("Expected a file at"));
}

TEST_CASE("read_file and gzip") {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "data";
  samples::test::write(file, pattern());
  samples::test::gzip(file);
  const std::filesystem::path packed = folder / "data.gz";
#ifdef DDP_SAMPLES_ZLIB
  CHECK(read_file(packed) == pattern());

  SECTION("a file that was cut off") {
    std::filesystem::resize_file(packed,
                                 std::filesystem::file_size(packed) / 2);
    CHECK_THROWS_WITH(
        read_file(packed),
        Catch::Contains("Expected a whole gzip file at " + packed.string()));
  }
  SECTION("a damaged file") {
    std::fstream stream(packed,
                        std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(1000);
    stream << "garbage";
    stream.close();
    CHECK_THROWS_WITH(read_file(packed),
                      Catch::Contains("Expected a whole gzip file"));
  }
#else
  CHECK_THROWS_WITH(read_file(packed),
                    Catch::Contains("gunzip " + packed.string()));
#endif
}

}  // namespace read_file_test
