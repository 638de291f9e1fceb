#include "launcher/hosts/make_rendezvous.h"

#include "launcher/base/overloaded.h"

namespace launcher {

std::unique_ptr<Rendezvous> make_rendezvous(EventLoop& loop,
                                            const RendezvousConfig& config,
                                            const std::string& host,
                                            const Rendezvous::Handler& handler,
                                            const NameService& ask) {
  return std::visit(Overloaded{[&](const UncoordinatedConfig& known) {
                                 return make_uncoordinated_rendezvous(known,
                                                                      handler);
                               },
                               [&](const StaticConfig& known) {
                                 return make_c10d_rendezvous(loop,
                                                             known,
                                                             known.coordinator,
                                                             known.store.port,
                                                             host,
                                                             handler,
                                                             ask);
                               },
                               [&](const C10dConfig& known) {
                                 return make_c10d_rendezvous(loop,
                                                             known,
                                                             known.coordinator,
                                                             std::nullopt,
                                                             host,
                                                             handler,
                                                             ask);
                               }},
                    config);
}

}  // namespace launcher
