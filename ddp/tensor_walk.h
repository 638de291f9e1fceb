#pragma once

#include "ddp/tensors/tensor_walk.h"  // IWYU pragma: export
