#include "launcher/base/overloaded.h"
#include "test/launcher/hosts/membership_simulation.h"

// Messages between coordinator and clients in a MembershipSimulation.
namespace launcher::test {

void MembershipSimulation::close_ends(size_t index, bool here, bool there) {
  const Connection link = *hosts_[index].link;
  if (there) {
    add_later(up_to(500ms),
              {.kind = Kind::closed_there, .host = index, .connection = link});
  }
  if (here) {
    add_later(up_to(500ms),
              {.kind = Kind::closed_here, .host = index, .connection = link});
  } else {
    silent_.insert(link);
  }
}

void MembershipSimulation::perform(Host& host,
                                   const RendezvousClient::Actions& actions) {
  const size_t index = index_of(host);
  for (const auto& action : actions) {
    std::visit(
        Overloaded{
            [&](const RendezvousClient::Connect&) {
              disconnect(index);
              connect(index);
            },
            [&](const RendezvousClient::Disconnect&) { disconnect(index); },
            [&](const Message& message) {
              if (hosts_[index].link) {
                send(Kind::to_coordinator, index, *hosts_[index].link, message);
              }
            },
            [&](const RendezvousAnswer& answer) {
              std::visit([&](const auto& known) { take(index, known); },
                         answer);
            }},
        action);
  }
}

void MembershipSimulation::perform(const Coordinator::Actions& actions) {
  for (const auto& action : actions) {
    if (const auto* drop = std::get_if<Coordinator::Drop>(&action)) {
      const auto guest = guests_.find(drop->connection);
      if (guest != guests_.end()) {
        add_later(up_to(500ms),
                  {.kind = Kind::closed_here,
                   .host = guest->second,
                   .connection = drop->connection});
      }
      continue;
    }
    const auto& sent = std::get<Coordinator::Send>(action);
    if (const auto* formed = std::get_if<WorldFormed>(&sent.message)) {
      oracle_->on_told(formed->world);
    }
    const auto guest = guests_.find(sent.to);
    if (guest != guests_.end()) {
      send(Kind::to_host, guest->second, sent.to, sent.message);
    }
  }
  oracle_->on_all_told();
}

void MembershipSimulation::disconnect(size_t index) {
  if (hosts_[index].link && *hosts_[index].link != kOwn) {
    close_ends(index, /*here=*/false, /*there=*/true);
    hosts_[index].link.reset();
  }
}

void MembershipSimulation::connect(size_t index) {
  Host& host = hosts_[index];
  const Connection connection = index == 0 ? kOwn : ++last_connection_;
  guests_[connection] = index;
  host.link = connection;
  const bool fails = !coordinator_ || (index != 0 && !is_calm() && one_in(8));
  add_later(index == 0 ? 0ms : up_to(100ms),
            {.kind = fails ? Kind::closed_here : Kind::opened,
             .host = index,
             .connection = connection});
}

void MembershipSimulation::send(Kind kind,
                                size_t index,
                                Connection connection,
                                const Message& message) {
  // Messages inside a process and messages after a Hello in a connection are
  // not lost.
  const bool is_own = connection == kOwn;
  if (silent_.count(connection) > 0) {
    return;
  }
  for (int copies = is_own || is_calm() ? 1
                    : one_in(5)         ? 0
                    : one_in(10)        ? 2
                                        : 1;
       copies > 0;
       --copies) {
    const Duration delay = is_own      ? 0ms
                           : is_calm() ? 1ms
                                       : up_to(one_in(10) ? 3s : 100ms);
    add_later(delay,
              {.kind = kind,
               .host = index,
               .connection = connection,
               .message = message});
  }
}

void MembershipSimulation::take(size_t index, const WorldFormed& formed) {
  Host& host = hosts_[index];
  const World& world = formed.world;
  require(!host.is_over && world.generation > host.generation,
          "an old generation is entered");
  require(!terms_.ranks_are_fixed || world.host_rank == fixed_rank(index),
          "a static host with another's rank");
  oracle_->on_entered(index, world, host.workers, host.id);
  host.generation = world.generation;
  host.restarts = world.restarts;
  host.is_working = true;
  host.has_failed = false;
  add_later(
      up_to(4s),
      {.kind = Kind::workers_end, .host = index, .attempt = ++host.attempt});
}

void MembershipSimulation::take(size_t index, const WorldBroken&) {
  Host& host = hosts_[index];
  if (host.waits_for_end) {
    host.waits_for_end = host.has_failed = false;
    stop_workers(index);  // another change was first
    return;
  }
  const bool are_stopping = host.has_failed;
  host.has_failed = false;
  host.is_working = false;
  if (!are_stopping) {
    stop_workers(index);
  }
}

void MembershipSimulation::take(size_t index, const JobClosed& closed) {
  oracle_->on_closed(closed.exit_code);
  end(index);
}

}  // namespace launcher::test
