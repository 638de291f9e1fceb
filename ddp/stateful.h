#pragma once

#include "ddp/checkpoint/state/stateful.h"  // IWYU pragma: export
