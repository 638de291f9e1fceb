#pragma once

#include <vector>

#include "ddp/exchanges/exchange.h"
#include "ddp/job/named_parameter.h"
#include "ddp/reduce/bucket_plan.h"
#include "ddp/reduce/detail/gradient_buckets.h"
#include "ddp/reduce/detail/pass_agreement.h"
#include "ddp/reduce/options.h"

// What a user's options and exchange ask of a reduction. All throw c10::Error
// for what cannot be.
namespace ddp::detail {

BucketCaps bucket_caps_of(const DistributedDataParallelOptions& options);

BucketLayout bucket_layout_of(const Exchange& exchange, int ranks);

UnusedMode unused_mode_of(const DistributedDataParallelOptions& options);

/// There are some, leaves that require gradients.
std::vector<NamedParameter> checked_leaves(
    std::vector<NamedParameter> parameters);

/// They are sparse only where the exchange takes that.
std::vector<NamedParameter> checked_layouts(
    std::vector<NamedParameter> parameters, const Exchange& exchange);

}  // namespace ddp::detail
