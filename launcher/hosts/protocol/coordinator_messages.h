#pragma once

#include <nlohmann/json.hpp>

#include "launcher/hosts/protocol/message.h"
#include "launcher/hosts/protocol/message_fields.h"

// Messages of a coordinator as JSON, for encode() and decode().
namespace launcher {

using MessageJson = nlohmann::json;

MessageJson to_json(const Noted& noted);
MessageJson to_json(const WorldFormed& formed);
MessageJson to_json(const Broken& broken);
MessageJson to_json(const JobClosed& closed);
MessageJson to_json(const RendezvousLost& lost);

Noted noted_of(MessageFields& fields);
WorldFormed formed_of(MessageFields& fields);
Broken broken_of(MessageFields& fields);
JobClosed closed_of(MessageFields& fields);
RendezvousLost lost_of(MessageFields& fields);

}  // namespace launcher
