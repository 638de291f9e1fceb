#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "launcher/net/port.h"
#include "launcher/options/settings.h"
#include "test/launcher/ddprun/run_ddprun.h"

namespace launcher::test {

/// False, and says so, where etcd is not installed.
bool is_etcd_there();

/// Files of a certificate and its key.
struct Certificate {
  std::string file;
  std::string key;
};

/// Certificates for tests, made by the openssl command.
class Authority {
 public:
  Authority();

  const std::string& file() const { return own_.file; }
  /// @param subject "/CN=etcd"
  /// @param host name of a server; empty: of a client
  Certificate certify(const std::string& subject, const std::string& host = "");

 private:
  ddp::test::TemporaryFolder folder_;
  Certificate own_;
  int certified_ = 0;
};

/// A real etcd on loopback, which goes with this object.
class EtcdServer {
 public:
  /// With TLS, if these are given: as what it shows itself, and whose clients
  /// it lets in.
  struct Tls {
    Certificate own;
    std::string authority;
  };

  explicit EtcdServer(const Tls& tls = {});
  ~EtcdServer();
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  /// Of several that are one etcd, all answering.
  static std::vector<std::unique_ptr<EtcdServer>> cluster(int size);

  void kill();
  /// With what it knew when it was killed.
  void start();
  /// It answers nobody until go_on().
  void stop() const;
  void go_on() const;

  /// With TLS as a client of its own certificate.
  EtcdSettings settings() const;
  /// With TLS by the name that `Tls::own` is to have.
  std::string endpoint() const;

  /// Of the job's coordinator.
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

/// The command line of a host of a job that meets by etcd.
///
/// @param settings more of --rdzv-conf, each with a comma before it
Ddprun::Arguments etcd_host_of(const std::string& endpoint,
                               const std::string& hosts,
                               const std::string& job,
                               const Ddprun::Arguments& program,
                               const std::string& settings = "");

}  // namespace launcher::test
