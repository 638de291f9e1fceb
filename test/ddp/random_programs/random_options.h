#pragma once

#include "test/ddp/random_programs/program.h"
#include "test/support/dice.h"

namespace ddp::test {

/// Returns a program without acts.
Program random_options(uint64_t seed, Dice& dice);

/// Returns whether gradients stay exact if they are divided twice.
bool may_keep(const Program& program);

}  // namespace ddp::test
