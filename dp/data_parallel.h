#pragma once

#include "dp/data_parallel/data_parallel.h"  // IWYU pragma: export
