#pragma once

#include <memory>

#include "ddp/checkpoint/detail/checkpoint_entry.h"
#include "ddp/exchanges/exchange.h"

namespace ddp::detail {

/// A list with each rank's `Exchange::state()`, a dict of tensors. Ranks of
/// another number take the state of their rank modulo the number of states.
std::shared_ptr<CheckpointEntry> entry_of(std::shared_ptr<Exchange> exchange);

}  // namespace ddp::detail
