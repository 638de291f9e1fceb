#pragma once

#include <memory>

#include "ddp/exchange.h"
#include "ddp/exchanges/weighted_mean.h"
#include "test/ddp/random_programs/program.h"
#include "test/support/local_ranks.h"

namespace ddp::test {

/// Returns the exchange of a program's ranks; null for the default exchange.
std::shared_ptr<Exchange> make_exchange(const Program& program,
                                        const Group& group);

}  // namespace ddp::test
