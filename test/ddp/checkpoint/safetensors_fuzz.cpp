// Damages files of sharded checkpoints at random and loads them:
//   safetensors_fuzz [COUNT [SEED]]
// Each input is refused with a short error, or loads. Fails on any other
// exception, and ends if an input takes a minute; sanitizers find the rest.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <torch/nn.h>

#include "ddp/checkpoint.h"
#include "ddp/checkpoint/detail/safetensors.h"
#include "test/support/damage.h"
#include "test/support/temporary_folder.h"

namespace {

using namespace ddp::test;

/// Replacements for parts of a header.
const std::vector<std::string> kTexts{"18446744073709551615",
                                      "9223372036854775807",
                                      "-1",
                                      "0",
                                      "1",
                                      "[]",
                                      "[[",
                                      "{}",
                                      "null",
                                      "1e9",
                                      "\"F64\"",
                                      "\"BOOL\"",
                                      "\\\"",
                                      ",",
                                      "\xff",
                                      "weight",
                                      "bias",
                                      "[0,4611686018427387904]",
                                      "[4611686018427387904,4]"};

/// Returns a file with this header.
std::string with_header(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) +
         header + data;
}

class Fuzz {
 public:
  explicit Fuzz(size_t seed) : random_(seed) {
    const auto weight = at::arange(12.0F).view({3, 4});
    ddp::detail::write_safetensors(path_,
                                   {{"weight", {0, 0}, weight.slice(0, 0, 2)},
                                    {"bias", {0}, at::arange(3.0F)}});
    ddp::detail::write_safetensors(folder_ / "x/b.safetensors",
                                   {{"weight", {2, 0}, weight.slice(0, 2)}});
    whole_ = read_file(path_);
    uint64_t length = 0;
    std::memcpy(&length, whole_.data(), sizeof(length));
    header_ = whole_.substr(sizeof(length), length);
    data_ = whole_.substr(sizeof(length) + length);
  }

  void run(size_t number) {
    std::string bytes;
    if (number == 0) {
      bytes = whole_;
    } else if (number % 4 == 1) {
      bytes = whole_;
      damage(bytes, random_, kTexts);
    } else {
      // The length fits, so the damage reaches the reader of the header.
      auto header = header_;
      damage(header, random_, kTexts);
      bytes = with_header(header, data_);
    }
    write_file(path_, bytes);
    ::alarm(60);
    try {
      torch::nn::Linear net(4, 3);
      ddp::Checkpoint(net).load(folder_ / "x");
      ++loaded_;
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      if (number == 0 || text.empty() || text.size() >= 1000) {
        throw std::logic_error("no clear error: " + text);
      }
      ++refused_;
    }
    ::alarm(0);
  }

  void print() const {
    std::printf("%zu refused, %zu loaded\n", refused_, loaded_);
  }

 private:
  Random random_;
  const TemporaryFolder folder_;
  const std::string path_ = [this] {
    ::mkdir((folder_ / "x").c_str(), 0777);
    return folder_ / "x/a.safetensors";
  }();
  std::string whole_, header_, data_;
  size_t refused_ = 0;
  size_t loaded_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 4000;
  const size_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  Fuzz fuzz(seed);
  for (size_t i = 0; i < count; ++i) {
    try {
      fuzz.run(i);
    } catch (const std::exception& error) {
      std::printf("input %zu of seed %zu: %s\n", i, seed, error.what());
      return 1;
    }
  }
  std::printf("seed %zu, %zu inputs: ", seed, count);
  fuzz.print();
}
