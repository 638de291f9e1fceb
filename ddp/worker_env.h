#pragma once

#include "ddp/base/cluster/worker_env.h"  // IWYU pragma: export
