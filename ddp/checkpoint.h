#pragma once

#include "ddp/checkpoint/checkpoint.h"  // IWYU pragma: export
