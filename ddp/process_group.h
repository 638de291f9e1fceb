#pragma once

#include "ddp/job/process_group.h"  // IWYU pragma: export
