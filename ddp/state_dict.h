#pragma once

#include "ddp/checkpoint/state_dict.h"  // IWYU pragma: export
