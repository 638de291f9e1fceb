#pragma once

#include <string>

#include "ddp/reduce/detail/gradient_buckets.h"
#include "ddp/reduce/detail/graph_record.h"

namespace ddp::detail {

/// At the end of a pass: in what it differs from the first one of a static
/// graph, with the parameters' names; "" where in nothing. What the first one
/// left out stays as it is, so it must have no gradient of a pass that was not
/// reduced either.
std::string changes_of(const GraphRecord& graph,
                       const GradientBuckets& buckets);

}  // namespace ddp::detail
