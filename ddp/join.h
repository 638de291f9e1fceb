#pragma once

#include "ddp/job/join.h"  // IWYU pragma: export
