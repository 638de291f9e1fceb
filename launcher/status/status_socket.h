#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "launcher/fd.h"

namespace launcher {

/// Of a job's socket, in a folder of the job's.
inline constexpr std::string_view kStatusSocketName = "status";

/// A socket that listens at this path and does not block, for its owner alone;
/// none and errno where it cannot be made. The path may be longer than the
/// address of a socket.
Fd listen_at_path(const std::string& path);

/// A socket that does not block, connected to who listens there; none and
/// errno.
Fd connect_to_path(const std::string& path);

/// The process that listens at the other end; 0 where the kernel does not say.
pid_t peer_of(const Fd& socket);

/// The folder of a job's temporary files, by its name.
bool is_job_folder(std::string_view name);

/// The sockets of jobs that run, from the text of /proc/net/unix. Pure.
std::vector<std::string> listening_jobs(std::string_view table);

}  // namespace launcher
