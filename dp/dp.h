#pragma once

// Everything of ddp::dp.
#include "dp/aggregate.h"
#include "dp/base/moved_bytes.h"
#include "dp/data_parallel.h"
#include "dp/options.h"
#include "dp/parallel.h"
#include "dp/parameter_server.h"
#include "dp/traffic.h"
