#pragma once

#ifndef CATCH_CONFIG_EXTERNAL_INTERFACES
#define CATCH_CONFIG_EXTERNAL_INTERFACES  // needed for listeners in Catch2 2
#endif
#include "test/support/catch.h"

namespace ddp::test {

/// Base class of listeners for the start and end of tests, in Catch2 3 and 2.
#if __has_include(<catch2/catch_all.hpp>)
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

}  // namespace ddp::test
