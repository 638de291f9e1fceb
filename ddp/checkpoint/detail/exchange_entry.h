#pragma once

#include <memory>

#include "ddp/checkpoint/detail/checkpoint_entry.h"
#include "ddp/exchanges/exchange.h"

namespace ddp::detail {

/// Creates the entry of an exchange: a list with each rank's
/// `Exchange::state()`, a dict of tensors. If the number of ranks changes, a
/// rank loads the state of its rank modulo the number of states.
/// @throws c10::Error if `exchange` is null.
std::shared_ptr<CheckpointEntry> entry_of(std::shared_ptr<Exchange> exchange);

}  // namespace ddp::detail
