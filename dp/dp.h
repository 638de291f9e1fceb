#pragma once

// Includes all public headers of ddp::dp.
#include "dp/base/moved_bytes.h"
#include "dp/data_parallel/aggregate.h"
#include "dp/data_parallel/data_parallel.h"
#include "dp/data_parallel/options.h"
#include "dp/servers/parameter_server.h"
