#pragma once

#include "ddp/wrap/distributed_data_parallel.h"  // IWYU pragma: export
