#include "samples/support/datasets.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "samples/support/files.h"

namespace samples {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDigitSide = 8;
constexpr int64_t kDigitPixels = kDigitSide * kDigitSide;
constexpr int64_t kDigitClasses = 10;
constexpr int64_t kTestEvery = 5;
// Mean and standard deviation of all pixels of the file, in its units of 0 to
// 16.
const Normalization kDigitNormalization{{4.884}, {6.017}};

struct Table {
  std::vector<uint8_t> pixels;
  std::vector<int64_t> labels;
};

// Returns the numbers of one line: 64 pixels, then the label.
std::vector<int64_t> parse_line(std::string_view line) {
  std::vector<int64_t> values;
  const char* at = line.data();
  const char* const end = at + line.size();
  while (true) {
    int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc{}) {
      return {};
    }
    values.push_back(value);
    if (next == end) {
      return values;
    }
    if (*next != ',') {
      return {};
    }
    at = next + 1;
  }
}

bool is_digit_image(const std::vector<int64_t>& values) {
  if (values.size() != kDigitPixels + 1 || values.back() < 0 ||
      values.back() >= kDigitClasses) {
    return false;
  }
  return std::all_of(values.begin(), values.end() - 1, [](int64_t pixel) {
    return pixel >= 0 && pixel <= 16;
  });
}

Table parse(std::string_view text, const fs::path& file) {
  Table table;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t length = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    const auto values = parse_line(line);
    TORCH_CHECK(is_digit_image(values),
                "Expected 64 pixels of 0 to 16 and a class of 0 to 9 in line ",
                number,
                " of ",
                file.string(),
                ", but got '",
                line.substr(0, 40),
                "'. Take the file from samples/data.");
    table.pixels.insert(table.pixels.end(), values.begin(), values.end() - 1);
    table.labels.push_back(values.back());
  }
  TORCH_CHECK(!table.labels.empty(),
              "Expected images in ",
              file.string(),
              ", but it is empty.");
  return table;
}

}  // namespace

Dataset load_digits(const fs::path& file) {
  const auto bytes = read_file(file);
  const auto table =
      parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file);
  const Images all(torch::tensor(table.pixels, torch::kUInt8)
                       .view({-1, 1, kDigitSide, kDigitSide}),
                   torch::tensor(table.labels, torch::kInt64),
                   kDigitNormalization);

  std::array<int64_t, kDigitClasses> seen{};
  std::vector<int64_t> train, test;
  for (size_t i = 0; i < table.labels.size(); ++i) {
    const int64_t count = ++seen[static_cast<size_t>(table.labels[i])];
    (count % kTestEvery == 0 ? test : train).push_back(static_cast<int64_t>(i));
  }
  return {"digits", all.select(train), all.select(test), kDigitClasses};
}

fs::path find_digits() {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  const std::array candidates{
      folder / "digits.csv",
      folder.parent_path() / "share" / "ddp" / "digits.csv"};
  const auto* found = std::find_if(
      candidates.begin(), candidates.end(), [](const fs::path& candidate) {
        return fs::is_regular_file(candidate);
      });
  TORCH_CHECK(found != candidates.end(),
              "Expected the digits at ",
              candidates[0].string(),
              " or ",
              candidates[1].string(),
              ", but got neither. Name their folder with --data.");
  return *found;
}

}  // namespace samples
