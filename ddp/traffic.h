#pragma once

#include "ddp/job/traffic.h"  // IWYU pragma: export
