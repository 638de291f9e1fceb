#pragma once

#include "ddp/wrap/fully_sharded_data_parallel.h"  // IWYU pragma: export
