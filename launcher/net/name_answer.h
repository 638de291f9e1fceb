#pragma once

#include <functional>
#include <string>
#include <vector>

// Answers of the name service, and their meaning for a job.
namespace launcher {

struct NameAnswer {
  int error = 0;  ///< result of getaddrinfo(), such as EAI_NONAME
  std::vector<std::string> addresses{};
};

/// Queries a name service for a host.
using NameService = std::function<NameAnswer(const std::string& host)>;

/// Queries this machine's name service. Blocks until it answers.
NameAnswer ask_name_service(const std::string& host);

/// Converts an answer to text for another process, and back.
std::string encode(const NameAnswer& answer);
NameAnswer decode_answer(const std::string& text);

enum class NameVerdict {
  found,
  not_yet,  ///< may get an address later, such as a pod that has not started
  never
};

/// Judges whether a host has an address, or may get one.
///
/// @param is_awaited  the host may be started later, as any host of a job with
///   several hosts
NameVerdict judge(const std::string& host,
                  const NameAnswer& answer,
                  bool is_awaited);

/// Whether a name service may ever know the name. False for a wrong address
/// (10.0.0.256), a label of 64 characters, and a name below .invalid.
bool can_be_host_name(const std::string& host);

/// Text "host name node7 cannot be resolved (Name or service not known)".
std::string problem_text(const std::string& host, const NameAnswer& answer);

}  // namespace launcher
