#pragma once

#include "ddp/job/collectives.h"  // IWYU pragma: export
