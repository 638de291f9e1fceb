#include "launcher/hosts/make_rendezvous.h"

namespace launcher {

std::unique_ptr<Rendezvous> make_rendezvous(EventLoop& loop,
                                            const RendezvousConfig& config,
                                            const std::string& host,
                                            const Rendezvous::Handler& handler,
                                            const NameService& ask) {
  const auto* single = std::get_if<UncoordinatedConfig>(&config);
  return single != nullptr
             ? make_uncoordinated_rendezvous(*single, handler)
             : make_c10d_rendezvous(loop,
                                    std::get<CoordinatedConfig>(config),
                                    host,
                                    handler,
                                    ask);
}

}  // namespace launcher
