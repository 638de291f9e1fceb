#pragma once

#include "dp/servers/parameter_server.h"  // IWYU pragma: export
