#pragma once

#include <optional>
#include <string>

#include "launcher/etcd/call.h"

namespace launcher {

/// An answer as text and back, from one process to the other. Nothing for
/// whatever is none.
std::string encode_etcd_answer(const EtcdAnswer& answer);
std::optional<EtcdAnswer> decode_etcd_answer(const std::string& text);

}  // namespace launcher
