#pragma once

#include "dp/data_parallel/traffic.h"  // IWYU pragma: export
