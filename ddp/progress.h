#pragma once

#include "ddp/base/job_files/progress.h"  // IWYU pragma: export
