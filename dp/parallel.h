#pragma once

#include "dp/data_parallel/parallel.h"  // IWYU pragma: export
