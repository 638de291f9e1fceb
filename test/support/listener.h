#pragma once

#ifndef CATCH_CONFIG_EXTERNAL_INTERFACES
#define CATCH_CONFIG_EXTERNAL_INTERFACES  // Catch2 2 has no listeners without
                                          // it
#endif
#include "test/support/catch.h"

namespace ddp::test {

/// What hears of tests that begin and end, in Catch2 3 and 2.
#if __has_include(<catch2/catch_all.hpp>)
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

}  // namespace ddp::test
