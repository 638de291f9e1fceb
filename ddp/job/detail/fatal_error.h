#pragma once

#include <string>

namespace ddp::detail {

/// Tells the other ranks of the job of `ddp::init_process_group` why this
/// process is about to end: they name it in their errors. Does nothing without
/// a job. Any thread.
void report_fatal_error(const std::string& text) noexcept;

}  // namespace ddp::detail
