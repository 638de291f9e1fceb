#pragma once

#include "ddp/tensors/stateful.h"  // IWYU pragma: export
