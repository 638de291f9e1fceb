// Damages files of sharded checkpoints at random and loads them:
//   safetensors_fuzz [COUNT [SEED]]
// Each input is refused with a short error, or loads. Fails on any other
// exception, and ends if an input takes a minute; sanitizers find the rest.
#include <sys/stat.h>

#include <cstring>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <torch/nn.h>

#include "ddp/checkpoint.h"
#include "ddp/checkpoint/detail/safetensors.h"
#include "test/support/damage.h"
#include "test/support/fuzzer.h"
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
                                   {{{"weight", {0, 0}, weight.slice(0, 0, 2)},
                                     {"bias", {0}, at::arange(3.0F)}},
                                    ""});
    ddp::detail::write_safetensors(
        folder_ / "x/b.safetensors",
        {{{"weight", {2, 0}, weight.slice(0, 2)}}, ""});
    whole_ = read_file(path_);
    load();
    uint64_t length = 0;
    std::memcpy(&length, whole_.data(), sizeof(length));
    header_ = whole_.substr(sizeof(length), length);
    data_ = whole_.substr(sizeof(length) + length);
  }

  void run(size_t number) {
    std::string bytes;
    if (number % 4 == 1) {
      bytes = whole_;
      damage(bytes, random_, kTexts);
    } else {
      // The length fits, so the damage reaches the reader of the header.
      auto header = header_;
      damage(header, random_, kTexts);
      bytes = with_header(header, data_);
    }
    write_file(path_, bytes);
    load();
  }

 private:
  void load() const {
    torch::nn::Linear net(4, 3);
    ddp::Checkpoint(net).load(folder_ / "x");
  }

  Random random_;
  const TemporaryFolder folder_;
  const std::string path_ = [this] {
    ::mkdir((folder_ / "x").c_str(), 0777);
    return folder_ / "x/a.safetensors";
  }();
  std::string whole_, header_, data_;
};

}  // namespace

int main(int argc, char** argv) {
  Fuzzer fuzzer(argc, argv, 4000);
  Fuzz fuzz(fuzzer.seed());
  return fuzzer.run([&](size_t number) { fuzz.run(number); });
}
