#pragma once

#include "ddp/exchanges/exchange.h"  // IWYU pragma: export
