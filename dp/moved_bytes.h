#pragma once

#include "dp/base/moved_bytes.h"  // IWYU pragma: export
