#pragma once

#include "ddp/wrap/distributed_data_parallel_base.h"  // IWYU pragma: export
