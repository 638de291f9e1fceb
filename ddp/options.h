#pragma once

#include "ddp/reduce/options.h"  // IWYU pragma: export
