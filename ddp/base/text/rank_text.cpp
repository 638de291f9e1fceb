#include "ddp/base/text/rank_text.h"

#include <algorithm>
#include <iterator>

namespace ddp::detail {
namespace {

constexpr size_t kMostNames = 12;
constexpr const char* kSeparator = ", ";

std::string first_names(const std::string& names) {
  size_t end = 0;
  size_t count = 0;
  for (size_t at = names.find(kSeparator); at != std::string::npos;
       at = names.find(kSeparator, at + 1)) {
    if (++count == kMostNames) {
      end = at;
    }
  }
  ++count;
  return count <= kMostNames ? names
                             : names.substr(0, end) + " and " +
                                   std::to_string(count - kMostNames) + " more";
}

}  // namespace

std::string rank_list(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    text += (text.empty() ? "" : kSeparator) + std::to_string(ranks[first]);
    if (last > first) {
      text += "-" + std::to_string(ranks[last]);
    }
    first = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string texts_by_rank(const std::vector<std::string>& texts) {
  std::string result;
  for (auto text = texts.begin(); text != texts.end(); ++text) {
    if (text->empty() || std::find(texts.begin(), text, *text) != text) {
      continue;
    }
    std::vector<int> ranks;
    for (auto same = text; same != texts.end(); ++same) {
      if (*same == *text) {
        ranks.push_back(static_cast<int>(same - texts.begin()));
      }
    }
    result += (result.empty() ? "on " : "; on ") + rank_list(std::move(ranks)) +
              ": " + *text;
  }
  return result;
}

std::string names_by_rank(const std::vector<std::string>& lists) {
  std::vector<std::string> texts;
  std::transform(
      lists.begin(), lists.end(), std::back_inserter(texts), first_names);
  const std::string text = texts_by_rank(texts);
  return text.empty() ? "" : " " + text + ";";
}

}  // namespace ddp::detail
