#pragma once

#include "ddp/job/mpi_group.h"  // IWYU pragma: export
