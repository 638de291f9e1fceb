#pragma once

#include "ddp/reduce/buffer_hook.h"  // IWYU pragma: export
