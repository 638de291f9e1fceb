#pragma once

#include "test/ddp/random_programs/plain_reduction.h"

namespace ddp::test {

/// Copies the values of rank `source` to all ranks, except ignored ones.
void copy_parameters(const Program& program, const Learners& ranks, int source);
void copy_buffers(const Program& program, const Learners& ranks, int source);
/// Copies a file's values to all ranks, also ignored ones.
void copy_file(const Program& program, const Learners& ranks, size_t act);

}  // namespace ddp::test
