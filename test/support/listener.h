#pragma once

#ifndef CATCH_CONFIG_EXTERNAL_INTERFACES
#define CATCH_CONFIG_EXTERNAL_INTERFACES  // needed for listeners in Catch2 2
#endif
#include "test/support/catch.h"

namespace ddp::test {

/// Base class of listeners for the start and end of tests, in Catch2 3 and 2.
#if DDP_CATCH2_MAJOR >= 3
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

}  // namespace ddp::test
