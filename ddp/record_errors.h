#pragma once

#include "ddp/job/record_errors.h"  // IWYU pragma: export
