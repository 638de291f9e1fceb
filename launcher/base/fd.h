#pragma once

#include "ddp/base/file_descriptor.h"

namespace launcher {

using Fd = ddp::detail::FileDescriptor;
using ddp::detail::check;
using ddp::detail::make_pipe;
using ddp::detail::Pipe;
using ddp::detail::retry_interrupted;

}  // namespace launcher
