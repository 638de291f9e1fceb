#pragma once

#include "test/ddp/random_programs/plain_reduction.h"

namespace ddp::test {

/// Of one rank to all; the ignored stay.
void copy_parameters(const Program& program, const Learners& ranks, int source);
void copy_buffers(const Program& program, const Learners& ranks, int source);
/// A file's to all, also the ignored.
void copy_file(const Program& program, const Learners& ranks, size_t act);

}  // namespace ddp::test
