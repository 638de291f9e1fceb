#pragma once

#include "ddp/checkpoint/checkpoint_folder.h"  // IWYU pragma: export
