#pragma once

#include "ddp/job/named_parameter.h"  // IWYU pragma: export
