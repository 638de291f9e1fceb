#pragma once

#include <cstdint>
#include <vector>

namespace samples {

/// A piece of time, from `begin` up to `end`, in nanoseconds of one clock.
struct Span {
  int64_t begin;
  int64_t end;

  int64_t length() const { return end - begin; }
};

/// Pieces of time that do not touch each other, in order.
using Spans = std::vector<Span>;

/// The time that is in at least one of `spans`; empty ones are left out.
Spans unite(std::vector<Span> spans);

/// The time that is in both.
Spans intersect(const Spans& a, const Spans& b);

int64_t total_length(const Spans& spans);

}  // namespace samples
