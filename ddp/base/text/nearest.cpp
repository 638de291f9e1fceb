#include "ddp/base/text/nearest.h"

#include <algorithm>
#include <numeric>

namespace ddp::detail {

size_t edit_distance(std::string_view first, std::string_view second) {
  // Distances of the prefix of `first` to each prefix of `second`.
  std::vector<size_t> row(second.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t done = 0; done < first.size(); ++done) {
    size_t diagonal = row[0]++;
    for (size_t at = 0; at < second.size(); ++at) {
      const size_t replaced = diagonal + (first[done] == second[at] ? 0 : 1);
      diagonal = row[at + 1];
      row[at + 1] = std::min({replaced, diagonal + 1, row[at] + 1});
    }
  }
  return row.back();
}

std::string nearest(std::string_view text,
                    const std::vector<std::string>& known) {
  constexpr size_t kLongestName = 100;  // longer than any known name
  std::string best;
  size_t least = text.size() / 3 + 1;
  if (text.empty() || text.size() > kLongestName) {
    return best;
  }
  for (const std::string& name : known) {
    if (name.compare(0, text.size(), text) == 0) {
      return name;
    }
    const size_t distance = edit_distance(text, name);
    if (distance < least) {
      least = distance;
      best = name;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view text,
                         const std::vector<std::string>& known,
                         const std::string& prefix) {
  const std::string name = nearest(text, known);
  return name.empty() ? "" : " (did you mean " + prefix + name + "?)";
}

}  // namespace ddp::detail
