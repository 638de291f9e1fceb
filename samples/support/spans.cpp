#include "samples/support/spans.h"

#include <algorithm>

namespace samples {

Spans unite(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return a.begin < b.begin;
  });
  Spans result;
  for (const Span& span : spans) {
    if (span.end <= span.begin) {
      continue;
    }
    if (!result.empty() && span.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, span.end);
    } else {
      result.push_back(span);
    }
  }
  return result;
}

Spans intersect(const Spans& a, const Spans& b) {
  Spans result;
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    const Span both{std::max(x->begin, y->begin), std::min(x->end, y->end)};
    if (both.begin < both.end) {
      result.push_back(both);
    }
    x->end < y->end ? void(++x) : void(++y);
  }
  return result;
}

int64_t total_length(const Spans& spans) {
  int64_t sum = 0;
  for (const Span& span : spans) {
    sum += span.length();
  }
  return sum;
}

}  // namespace samples
