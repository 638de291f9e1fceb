#pragma once

#include "ddp/graph/graphed_step.h"  // IWYU pragma: export
