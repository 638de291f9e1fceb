#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddp/exchanges/exchange.h"

namespace ddp::detail {

/// Whether this is a group of the job over Gloo. A group that the program has
/// put around one of these is another: it gets its all-reduces, which it may
/// count or change.
bool is_gloo_group_of_job(const c10d::Backend& group);

/// Returns the exchange of a wrapper whose program gives none: a
/// `SharedMemoryAllReduce` for an `is_gloo_group_of_job`, else null, which
/// stands for an `AllReduce`. Collective.
std::shared_ptr<Exchange> default_exchange(
    const c10::intrusive_ptr<c10d::Backend>& group);

}  // namespace ddp::detail
