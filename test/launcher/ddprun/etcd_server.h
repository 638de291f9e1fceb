#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "launcher/net/port.h"
#include "launcher/options/etcd_options.h"
#include "test/launcher/ddprun/run_ddprun.h"

namespace launcher::test {

/// Returns whether etcd is installed. Prints a warning if it is not.
bool is_etcd_there();

/// Files of a certificate and its key.
struct Certificate {
  std::string file;
  std::string key;
};

/// Creates certificates for tests with the openssl command.
class Authority {
 public:
  Authority();

  const std::string& file() const { return own_.file; }
  /// @param subject for example "/CN=etcd"
  /// @param host name of a server; empty: of a client
  Certificate certify(const std::string& subject, const std::string& host = "");

 private:
  ddp::test::TemporaryFolder folder_;
  Certificate own_;
  int certified_ = 0;
};

/// A real etcd on loopback, which ends with this object.
class EtcdServer {
 public:
  /// If set, the server uses TLS with its own certificate, and accepts clients
  /// with certificates of the authority.
  struct Tls {
    Certificate own;
    std::string authority;
  };

  explicit EtcdServer(const Tls& tls = {});
  ~EtcdServer();
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  /// Starts a cluster of several members, and returns once all of them answer.
  static std::vector<std::unique_ptr<EtcdServer>> cluster(int size);

  void kill();
  /// Starts the server again with the data that it had when it was killed.
  void start();
  /// Stops all answers until go_on().
  void stop() const;
  void go_on() const;

  /// Returns the settings of a client. With TLS the client uses the server's
  /// certificate.
  EtcdSettings settings() const;
  /// Returns the server's endpoint. With TLS its host is the name in
  /// `Tls::own`.
  std::string endpoint() const;

  /// Returns the port of the job's coordinator.
  int coordinators_port(const std::string& job) const;
  void run_etcdctl(const std::string& command) const;

 private:
  EtcdServer(const std::string& name, const Tls& tls);
  void exec();
  void await() const;
  std::string own_peer() const;

  std::string name_;
  Tls tls_;
  PortReservation client_{0};
  PortReservation peer_{0};
  std::string members_;  // of the cluster
  ddp::test::TemporaryFolder folder_;
  pid_t pid_ = -1;
};

/// Returns the command line of a host whose job meets through etcd.
///
/// @param settings additional settings of --rdzv-conf, each with a comma before
///     it
Ddprun::Arguments etcd_host_of(const std::string& endpoint,
                               const std::string& hosts,
                               const std::string& job,
                               const Ddprun::Arguments& program,
                               const std::string& settings = "");

}  // namespace launcher::test
