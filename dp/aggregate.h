#pragma once

#include "dp/data_parallel/aggregate.h"  // IWYU pragma: export
