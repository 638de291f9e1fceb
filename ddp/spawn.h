#pragma once

#include "ddp/job/spawn.h"  // IWYU pragma: export
