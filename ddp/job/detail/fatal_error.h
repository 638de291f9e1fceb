#pragma once

#include <string>

namespace ddp::detail {

/// Reports to the other ranks of the job of `ddp::init_process_group` why this
/// process is about to end, for their error messages. Does nothing without a
/// job. Thread-safe.
void report_fatal_error(const std::string& text) noexcept;

}  // namespace ddp::detail
