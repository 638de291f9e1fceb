#pragma once

#include <memory>
#include <string>

#include "launcher/hosts/protocol/rendezvous.h"
#include "launcher/net/name_lookup.h"
#include "launcher/options/rendezvous_config.h"

namespace launcher {

class EventLoop;

/// Makes the rendezvous of the options.
///
/// @param host name of this host for messages
std::unique_ptr<Rendezvous> make_rendezvous(
    EventLoop& loop,
    const RendezvousConfig& config,
    const std::string& host,
    const Rendezvous::Handler& handler,
    const NameService& ask = ask_name_service);

/// Hosts that exchange no messages. All of them have as many workers as this
/// host, and every world has the same hosts and endpoint. With several hosts
/// the first failure closes the job. On the host with rank 0 the port of the
/// store is checked and reserved; see PortReservation.
///
/// With port 0, every world of a single host gets another free port, so that no
/// process of an earlier world can connect.
std::unique_ptr<Rendezvous> make_uncoordinated_rendezvous(
    const UncoordinatedConfig& config, Rendezvous::Handler handler);

/// Hosts that exchange messages with a Coordinator. It runs in a ddprun on the
/// endpoint's host: the first one there that finds the port free. Every host
/// has a RendezvousClient and a connection to the coordinator. On its own host
/// the connection is a socketpair.
///
/// With c10d, MASTER_ADDR is the address of rank 0's host in its connection to
/// the coordinator, or on the endpoint's host the endpoint's name. MASTER_PORT
/// is a free port of rank 0's host, another one for each world. Static hosts
/// have their ranks and rank 0's store from the options.
///
/// @param ask is called on a thread; see NameLookup
std::unique_ptr<Rendezvous> make_c10d_rendezvous(
    EventLoop& loop,
    const CoordinatedConfig& config,
    const std::string& host,
    const Rendezvous::Handler& handler,
    const NameService& ask);

}  // namespace launcher
