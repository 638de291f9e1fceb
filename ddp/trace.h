#pragma once

#include "ddp/trace/trace.h"  // IWYU pragma: export
