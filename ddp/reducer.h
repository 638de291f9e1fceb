#pragma once

#include "ddp/reduce/reducer.h"  // IWYU pragma: export
