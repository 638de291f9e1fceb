#include <algorithm>

#include "ddp/trace/trace.h"

namespace ddp {

TimeSpans unite(std::vector<TimeSpan> spans) {
  std::sort(
      spans.begin(), spans.end(), [](const TimeSpan& a, const TimeSpan& b) {
        return a.begin < b.begin;
      });
  TimeSpans result;
  for (const TimeSpan& span : spans) {
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

TimeSpans intersect(const TimeSpans& a, const TimeSpans& b) {
  TimeSpans result;
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    const TimeSpan both{std::max(x->begin, y->begin), std::min(x->end, y->end)};
    if (both.begin < both.end) {
      result.push_back(both);
    }
    x->end < y->end ? void(++x) : void(++y);
  }
  return result;
}

int64_t total_length(const TimeSpans& spans) {
  int64_t sum = 0;
  for (const TimeSpan& span : spans) {
    sum += span.length();
  }
  return sum;
}

}  // namespace ddp
