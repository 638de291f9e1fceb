#pragma once

#include <spdlog/logger.h>

#include <memory>

#include "launcher/environment.h"
#include "launcher/output/console.h"

namespace launcher {

/// ddprun's own messages: "ddprun: text" on its stderr, in order with the
/// workers' lines. LOGLEVEL (INFO, WARNING, ...) chooses how many, as with
/// torchrun; WARNING when it is not set.
std::shared_ptr<spdlog::logger> make_logger(Console& console,
                                            const Environment& environment);

}  // namespace launcher
