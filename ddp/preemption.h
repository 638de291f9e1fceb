#pragma once

#include "ddp/job/preemption.h"  // IWYU pragma: export
