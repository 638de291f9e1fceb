#include "test/support/damage.h"

#include <algorithm>

namespace ddp::test {
namespace {

void damage_one_place(std::string& bytes,
                      Random& random,
                      const std::vector<std::string>& texts) {
  if (bytes.empty()) {
    return;
  }
  const size_t at = below(random, bytes.size());
  const size_t length = std::min(below(random, 64) + 1, bytes.size() - at);
  const size_t other = below(random, bytes.size());
  switch (below(random, 7)) {
    case 0:
      bytes[at] ^= static_cast<char>(1U << below(random, 8));
      break;
    case 1:
      bytes[at] = static_cast<char>(below(random, 256));
      break;
    case 2:
      bytes.erase(at, length);
      break;
    case 3:
      bytes.insert(other, bytes.substr(at, length));
      break;
    case 4:
      bytes.replace(other, length, bytes.substr(at, length));
      break;
    case 5:
      bytes.resize(at);
      break;
    default: {
      const std::string& text = any_of(texts, random);
      bytes.replace(at, text.size(), text);
    }
  }
}

}  // namespace

size_t below(Random& random, size_t limit) {
  return std::uniform_int_distribution<size_t>(0, limit - 1)(random);
}

void damage(std::string& bytes,
            Random& random,
            const std::vector<std::string>& texts) {
  for (size_t times = below(random, 4) + 1; times > 0; --times) {
    damage_one_place(bytes, random, texts);
  }
}

}  // namespace ddp::test
