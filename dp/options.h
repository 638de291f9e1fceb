#pragma once

#include "dp/data_parallel/options.h"  // IWYU pragma: export
