#pragma once

#include "test/ddp/random_programs/program.h"
#include "test/support/dice.h"

namespace ddp::test {

/// All of a program but for what is done.
Program random_options(uint64_t seed, Dice& dice);

/// Whether gradients may be divided twice.
bool may_keep(const Program& program);

}  // namespace ddp::test
