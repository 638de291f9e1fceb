#pragma once

// Everything of ddp::ddp.
#include "ddp/autocast.h"
#include "ddp/checkpoint.h"
#include "ddp/collectives.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/distributed_sampler.h"
#include "ddp/exchange.h"
#include "ddp/exchanges/all_reduce.h"
#include "ddp/exchanges/cast_exchange.h"
#include "ddp/grad_scaler.h"
#include "ddp/process_group.h"
#include "ddp/progress.h"
#include "ddp/record_errors.h"
#include "ddp/spawn.h"
#include "ddp/state_dict.h"
#include "ddp/trace.h"
#include "ddp/traffic.h"
