#pragma once

namespace ddp::detail {

/// Returns whether this rank may share memory with others: false after
/// ProcessGroupOptions::shared_memory(false) or with DDP_SHARED_MEMORY=0.
bool wants_shared_memory();

}  // namespace ddp::detail
