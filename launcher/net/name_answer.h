#pragma once

#include <string>
#include <vector>

// What the name service has said of a host, and what to make of it.
namespace launcher {

struct NameAnswer {
  int error = 0;  ///< of getaddrinfo(): EAI_NONAME
  std::vector<std::string> addresses{};
};

/// Asks the name service, and takes as long as it does.
NameAnswer ask_name_service(const std::string& host);

/// An answer as text, as one process hands it to another.
std::string encode(const NameAnswer& answer);
NameAnswer decode_answer(const std::string& text);

enum class NameVerdict {
  found,
  not_yet,  ///< it may have an address later, as a pod that is yet to start
  never
};

/// @param is_awaited others may start the host later; nobody waits for the only
///   host of a job
NameVerdict judge(const std::string& host,
                  const NameAnswer& answer,
                  bool is_awaited);

/// False where no name service will ever know it: an address that is none
/// (10.0.0.256), a label of 64 characters, a name below .invalid.
bool can_be_host_name(const std::string& host);

/// "host name node7 cannot be resolved (Name or service not known)".
std::string problem_text(const std::string& host, const NameAnswer& answer);

}  // namespace launcher
