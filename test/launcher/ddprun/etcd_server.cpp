#include "test/launcher/ddprun/etcd_server.h"
#include "test/launcher/etcd/ask_etcd.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "launcher/hosts/etcd/job_state.h"
#include "test/support/catch.h"

namespace launcher::test {
namespace {

void run_quietly(const std::string& command) {
  CAPTURE(command);
  REQUIRE(std::system((command + " >/dev/null 2>&1").c_str()) == 0);
}

}  // namespace

bool is_etcd_there() {
  if (std::system(
          "{ command -v etcd && command -v etcdctl; } >/dev/null 2>&1") == 0) {
    return true;
  }
  WARN("skipped: etcd and etcdctl are not installed");
  return false;
}

Authority::Authority() : own_{folder_ / "authority.crt", folder_ / "key"} {
  run_quietly(
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 "
      "-nodes -days 2 -subj /CN=authority -keyout " +
      own_.key + " -out " + own_.file);
}

Certificate Authority::certify(const std::string& subject,
                               const std::string& host) {
  const std::string name = std::to_string(++certified_);
  Certificate made{folder_ / (name + ".crt"), folder_ / (name + ".key")};
  run_quietly(
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 "
      "-nodes -days 2 -subj " +
      subject + " -CA " + own_.file + " -CAkey " + own_.key +
      " -addext basicConstraints=critical,CA:false" +
      (host.empty() ? "" : " -addext subjectAltName=DNS:" + host) +
      " -keyout " + made.key + " -out " + made.file);
  return made;
}

EtcdServer::EtcdServer(const Tls& tls) : EtcdServer("default", tls) {
  members_ = own_peer();
  start();
}

EtcdServer::EtcdServer(const std::string& name, const Tls& tls)
    : name_(name), tls_(tls) {}

EtcdServer::~EtcdServer() {
  kill();
}

std::vector<std::unique_ptr<EtcdServer>> EtcdServer::cluster(int size) {
  std::vector<std::unique_ptr<EtcdServer>> all;
  std::string members;
  for (int index = 0; index < size; ++index) {
    all.emplace_back(new EtcdServer("member" + std::to_string(index), {}));
    members += (members.empty() ? "" : ",") + all.back()->own_peer();
  }
  for (auto& server : all) {
    server->members_ = members;
    server->exec();
  }
  for (auto& server : all) {
    server->await();
  }
  return all;
}

void EtcdServer::kill() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
}

void EtcdServer::start() {
  exec();
  await();
}

void EtcdServer::stop() const {
  ::kill(pid_, SIGSTOP);
}

void EtcdServer::go_on() const {
  ::kill(pid_, SIGCONT);
}

std::string EtcdServer::own_peer() const {
  return name_ + "=http://127.0.0.1:" + std::to_string(peer_.port());
}

void EtcdServer::exec() {
  const bool has_tls = !tls_.own.file.empty();
  const std::string client = (has_tls ? "https" : "http") +
                             std::string("://127.0.0.1:") +
                             std::to_string(client_.port());
  const std::string peer = "http://127.0.0.1:" + std::to_string(peer_.port());
  std::vector<std::string> arguments{"etcd",
                                     "--name=" + name_,
                                     "--data-dir=" + (folder_ / "data"),
                                     "--listen-client-urls=" + client,
                                     "--advertise-client-urls=" + client,
                                     "--listen-peer-urls=" + peer,
                                     "--initial-advertise-peer-urls=" + peer,
                                     "--initial-cluster=" + members_,
                                     "--heartbeat-interval=50",
                                     "--election-timeout=500",
                                     "--unsafe-no-fsync"};
  if (has_tls) {
    arguments.push_back("--cert-file=" + tls_.own.file);
    arguments.push_back("--key-file=" + tls_.own.key);
    arguments.push_back("--trusted-ca-file=" + tls_.authority);
    arguments.emplace_back("--client-cert-auth");
  }
  std::vector<char*> words;
  for (std::string& argument : arguments) {
    words.push_back(argument.data());
  }
  words.push_back(nullptr);
  const std::string log = folder_ / "log";
  pid_ = ::fork();
  REQUIRE(pid_ >= 0);
  if (pid_ == 0) {
    if (std::freopen(log.c_str(), "a", stdout) != nullptr) {
      ::dup2(STDOUT_FILENO, STDERR_FILENO);
    }
    ::execvp("etcd", words.data());
    ::_exit(127);
  }
}

void EtcdServer::await() const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  EtcdAnswer answer;
  while ((answer = ask_etcd(settings(), "nobody's")).outcome !=
         EtcdAnswer::Outcome::done) {
    if (std::chrono::steady_clock::now() > end) {
      FAIL("etcd does not answer after 20 s: " << answer.text);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

EtcdSettings EtcdServer::settings() const {
  EtcdSettings settings;
  settings.has_tls = !tls_.own.file.empty();
  settings.endpoints = {
      {settings.has_tls ? "localhost" : "127.0.0.1", client_.port()}};
  settings.certificate = tls_.own.file;
  settings.key = tls_.own.key;
  settings.authorities = tls_.authority;
  return settings;
}

std::string EtcdServer::endpoint() const {
  return settings().endpoints.front().host + ":" +
         std::to_string(client_.port());
}

int EtcdServer::coordinators_port(const std::string& job) const {
  const EtcdAnswer answer = ask_etcd(settings(), job);
  REQUIRE(answer.coordinator);
  return decode_place(answer.coordinator->value).value().endpoint.port;
}

void EtcdServer::run_etcdctl(const std::string& command) const {
  const std::string tls = tls_.own.file.empty()
                              ? ""
                              : " --cacert=" + tls_.authority +
                                    " --cert=" + tls_.own.file +
                                    " --key=" + tls_.own.key;
  run_quietly("ETCDCTL_API=3 etcdctl --endpoints=" + endpoint() + tls + " " +
              command);
}

Ddprun::Arguments etcd_host_of(const std::string& endpoint,
                               const std::string& hosts,
                               const std::string& job,
                               const Ddprun::Arguments& program,
                               const std::string& settings) {
  Ddprun::Arguments all{"--nnodes=" + hosts,
                        "--rdzv-backend=etcd-v2",
                        "--rdzv-id=" + job,
                        "--rdzv-endpoint=" + endpoint,
                        "--rdzv-conf=last_call_timeout=0.2" + settings};
  all.insert(all.end(), program.begin(), program.end());
  return all;
}

}  // namespace launcher::test
