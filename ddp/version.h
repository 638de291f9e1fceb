#pragma once

#include "ddp/base/version.h"  // IWYU pragma: export
