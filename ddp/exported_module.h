#pragma once

#include "ddp/exported/exported_module.h"  // IWYU pragma: export
