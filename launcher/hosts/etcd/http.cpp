#include "launcher/hosts/etcd/http.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "launcher/base/one_line.h"
#include "launcher/hosts/etcd/curl_functions.h"
#include "launcher/machine/open_descriptors.h"
#include "launcher/net/endpoint.h"

namespace launcher {
namespace {

constexpr const char* kCurlNames[] = {
    "libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"};
constexpr const char* kTransferTimer = "etcd transfer";

HttpError::Kind kind_of(int code) {
  switch (code) {
    case curl::kTlsConnect:
    case curl::kTlsCertificate:
    case curl::kTlsCipher:
    case curl::kTlsPeer:
    case curl::kTlsAuthorities:
      return HttpError::Kind::tls;
    case curl::kNoSuchProtocol:
    case curl::kStrangeReply:
    case curl::kWriteStopped:
      return HttpError::Kind::stranger;
    default:
      return HttpError::Kind::unreachable;
  }
}

/// Time for connecting: so short that an endpoint that does not answer leaves
/// time for the others.
std::chrono::milliseconds connect_time(const EtcdSettings& settings) {
  constexpr std::chrono::milliseconds kLeast{1'000};
  const auto count = static_cast<int>(settings.endpoints.size());
  return std::max(kLeast, settings.request_time / count);
}

/// A server that rejects the certificate sends an alert after the handshake.
bool is_refusal_of_tls(const EtcdSettings& settings,
                       int code,
                       const std::string& text) {
  return settings.has_tls && code == curl::kNothingRead &&
         text.find("alert") != std::string::npos;
}

int keep_from_workers(void*, int fd, int) {
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return 0;
}

/// Also closes descriptors that libcurl has opened for itself in workers.
void keep_new_from_workers(const std::vector<int>& before) {
  for (const int fd : open_descriptors()) {
    if (std::find(before.begin(), before.end(), fd) == before.end()) {
      keep_from_workers(nullptr, fd, 0);
    }
  }
}

}  // namespace

/// libcurl, its connections, and the present transfer.
class EtcdHttp::Transfers {
 public:
  /// @param settings  must outlive this object
  Transfers(EventLoop& loop, const EtcdSettings& settings)
      : loop_(loop), settings_(settings) {
    for (const char* name : kCurlNames) {
      library_ = library_ != nullptr ? library_ : ::dlopen(name, RTLD_NOW);
      const char* error = library_ != nullptr ? nullptr : ::dlerror();
      if (error != nullptr && problem_.empty()) {
        problem_ = on_one_line(error);
      }
    }
    const std::vector<int> before = open_descriptors();
    if (has_functions()) {
      call<int>("curl_global_init", curl::kGlobalAll);
      easy_ = call<curl::Handle>("curl_easy_init");
      multi_ = call<curl::Handle>("curl_multi_init");
    }
    if (is_loaded()) {
      set_multi(curl::kSocketFunction, curl::WatchSocket(&watch_socket));
      set_multi(curl::kSocketData, static_cast<void*>(this));
      set_multi(curl::kTimerFunction, curl::SetTimer(&set_timer));
      set_multi(curl::kTimerData, static_cast<void*>(this));
      set_fixed_options();
    }
    keep_new_from_workers(before);
  }
  ~Transfers() {
    cancel();
    if (is_loaded()) {
      call<void>("curl_easy_cleanup", easy_);
      call<int>("curl_multi_cleanup", multi_);
      call<void>("curl_slist_free_all", addresses_);
    }
    for (const auto& [fd, token] : watches_) {
      loop_.unwatch(token);
    }
    loop_.disarm_timer(kTransferTimer);
  }
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  bool is_loaded() const { return easy_ != nullptr && multi_ != nullptr; }
  /// Reason why libcurl cannot be used, with its name.
  std::string problem() const {
    return problem_.empty() ? "libcurl.so.4 lacks functions" : problem_;
  }

  void set_addresses(const std::string& entry);
  void start(const std::string& url,
             const GatewayRequest& request,
             const std::string& token,
             std::chrono::milliseconds limit,
             Handler handler,
             IsEnough is_enough);
  void cancel() {
    if (!handler_) {
      return;
    }
    handler_ = nullptr;
    if (is_loaded()) {
      remove();
    }
    loop_.disarm_timer(kTransferTimer);
  }
  /// Answers with an error from the event loop, because nothing can be sent.
  void answer_later(const HttpError& error, Handler handler) {
    handler_ = std::move(handler);
    loop_.arm_timer(kTransferTimer,
                    std::chrono::milliseconds(0),
                    [this, error] { std::exchange(handler_, nullptr)(error); });
  }

 private:
  using Variadic = int (*)(curl::Handle, int, ...);

  bool has_functions() const {
    return std::all_of(std::begin(curl::kFunctions),
                       std::end(curl::kFunctions),
                       [this](const char* name) {
                         return library_ != nullptr &&
                                ::dlsym(library_, name) != nullptr;
                       });
  }
  template <typename Result, typename... Arguments>
  Result call(const char* name, Arguments... arguments) const {
    const auto function =
        reinterpret_cast<Result (*)(Arguments...)>(::dlsym(library_, name));
    return function(arguments...);
  }
  /// Finds a function with a variadic last argument.
  Variadic variadic(const char* name) const {
    return reinterpret_cast<Variadic>(::dlsym(library_, name));
  }
  void set_fixed_options();
  template <typename Value>
  void set(int option, Value value) const {
    variadic("curl_easy_setopt")(easy_, option, value);
  }
  template <typename Value>
  void set_multi(int option, Value value) const {
    variadic("curl_multi_setopt")(multi_, option, value);
  }
  template <typename Value>
  Value get(int what) const {
    Value value{};
    variadic("curl_easy_getinfo")(easy_, what, &value);
    return value;
  }

  static size_t append_bytes(char* bytes,
                             size_t size,
                             size_t count,
                             void* user) {
    Transfers& self = *static_cast<Transfers*>(user);
    self.body_.append(bytes, size * count);
    self.was_enough_ = self.is_enough_ && self.is_enough_(self.body_);
    // Any other number than the given one ends the transfer.
    return self.was_enough_ || self.body_.size() > kLongestGatewayAnswer
               ? 0
               : size * count;
  }
  static int watch_socket(curl::Handle, int fd, int what, void* user, void*) {
    Transfers& self = *static_cast<Transfers*>(user);
    const auto watched = self.watches_.find(fd);
    if (watched != self.watches_.end()) {
      self.loop_.unwatch(watched->second);
      self.watches_.erase(watched);
    }
    const uint32_t events = ((what & curl::kPollIn) != 0 ? EPOLLIN : 0U) |
                            ((what & curl::kPollOut) != 0 ? EPOLLOUT : 0U);
    if (what != curl::kPollRemove && events != 0) {
      self.watches_[fd] = self.loop_.watch(
          fd, events, [&self, fd] { self.continue_transfer(fd); });
    }
    return 0;
  }
  static int set_timer(curl::Handle, long milliseconds, void* user) {
    Transfers& self = *static_cast<Transfers*>(user);
    if (milliseconds < 0) {
      self.loop_.disarm_timer(kTransferTimer);
    } else {
      self.loop_.arm_timer(
          kTransferTimer, std::chrono::milliseconds(milliseconds), [&self] {
            self.continue_transfer(curl::kSocketTimeout);
          });
    }
    return 0;
  }

  /// @param fd  descriptor that is ready
  void continue_transfer(int fd) {
    int running = 0;
    call<int>("curl_multi_socket_action", multi_, fd, 0, &running);
    std::optional<int> code;
    int left = 0;
    while (const auto* message = call<const curl::Message*>(
               "curl_multi_info_read", multi_, &left)) {
      code = message->is == curl::kDone ? message->data.result : code;
    }
    if (code && handler_) {
      const auto answer = answer_of(*code);
      remove();
      std::exchange(handler_,
                    nullptr)(answer);  // it may start the next transfer
    }
  }
  std::variant<HttpAnswer, HttpError> answer_of(int code) const;
  void remove() {
    call<int>("curl_multi_remove_handle", multi_, easy_);
    set(curl::kHttpHeader, curl::List(nullptr));
    call<void>("curl_slist_free_all", std::exchange(headers_, nullptr));
  }

  EventLoop& loop_;
  const EtcdSettings& settings_;
  std::string problem_;
  void* library_ = nullptr;
  curl::Handle easy_ = nullptr;
  curl::Handle multi_ = nullptr;
  std::map<int, EventLoop::Token> watches_;
  curl::List addresses_ = nullptr;

  // State of the transfer.
  Handler handler_;  // empty: no transfer runs
  IsEnough is_enough_;
  std::string body_;
  std::string request_;
  bool was_enough_ = false;
  curl::List headers_ = nullptr;
  std::array<char, curl::kErrorSize> error_{};
};

/// Sets the options of all transfers, which a handle of libcurl keeps.
void EtcdHttp::Transfers::set_fixed_options() {
  set(curl::kProxy, "");  // etcd is not behind a proxy
  set(curl::kErrorBuffer, error_.data());
  set(curl::kNoSignal, 1L);
  set(curl::kSocketOptionsFunction, curl::SetSocket(&keep_from_workers));
  set(curl::kWriteFunction, curl::Write(&append_bytes));
  set(curl::kWriteData, static_cast<void*>(this));
  for (const auto& [option, file] :
       {std::pair(curl::kCertificate, &settings_.certificate),
        std::pair(curl::kKey, &settings_.key),
        std::pair(curl::kAuthorities, &settings_.authorities)}) {
    if (!file->empty()) {
      set(option, file->c_str());
    }
  }
}

void EtcdHttp::Transfers::set_addresses(const std::string& entry) {
  const curl::List before =
      std::exchange(addresses_,
                    entry.empty() ? nullptr
                                  : call<curl::List>("curl_slist_append",
                                                     curl::List(nullptr),
                                                     entry.c_str()));
  set(curl::kResolve, addresses_);
  call<void>("curl_slist_free_all", before);
}

void EtcdHttp::Transfers::start(const std::string& url,
                                const GatewayRequest& request,
                                const std::string& token,
                                std::chrono::milliseconds limit,
                                Handler handler,
                                IsEnough is_enough) {
  handler_ = std::move(handler);
  is_enough_ = std::move(is_enough);
  request_ = request.body;
  body_.clear();
  was_enough_ = false;
  error_ = {};
  set(curl::kUrl, url.c_str());
  set(curl::kPostFields, request_.c_str());
  set(curl::kPostFieldSize, static_cast<long>(request_.size()));
  set(curl::kTimeoutMs, static_cast<long>(limit.count()));
  set(curl::kConnectTimeoutMs,
      static_cast<long>(std::min(limit, connect_time(settings_)).count()));
  const auto add_header = [this](const std::string& line) {
    headers_ = call<curl::List>("curl_slist_append", headers_, line.c_str());
  };
  add_header("Content-Type: application/json");
  if (!token.empty()) {
    add_header("Authorization: " + token);
  }
  set(curl::kHttpHeader, headers_);
  // The timer that libcurl sets continues the transfer.
  call<int>("curl_multi_add_handle", multi_, easy_);
}

std::variant<HttpAnswer, HttpError> EtcdHttp::Transfers::answer_of(
    int code) const {
  // A watch without a change. A timeout of connecting has the same code.
  const bool is_quiet =
      code == curl::kTimedOut && get<long>(curl::kResponseCode) == 200;
  const bool is_ended_watch = is_enough_ && (was_enough_ || is_quiet);
  if (code != curl::kOk && !is_ended_watch) {
    const std::string text =
        error_.front() != '\0' ? std::string(error_.data())
                               : call<const char*>("curl_easy_strerror", code);
    // A server that expects TLS closes a connection without TLS like this.
    const bool may_want_tls = !settings_.has_tls && code == curl::kEmptyReply;
    return HttpError{
        is_refusal_of_tls(settings_, code, text) ? HttpError::Kind::tls
                                                 : kind_of(code),
        on_one_line(text) +
            (may_want_tls ? " (as if it wanted --rdzv-conf protocol=https)"
                          : "")};
  }
  const char* address = get<const char*>(curl::kLocalAddress);
  return HttpAnswer{.status = static_cast<int>(get<long>(curl::kResponseCode)),
                    .body = body_,
                    .local_address = address != nullptr ? address : ""};
}

EtcdHttp::EtcdHttp(EventLoop& loop, const EtcdSettings& settings)
    : loop_(loop), settings_(settings) {}

EtcdHttp::~EtcdHttp() = default;

void EtcdHttp::cancel() {
  if (transfers_) {
    transfers_->cancel();
  }
}

void EtcdHttp::post(const Endpoint& endpoint,
                    const std::vector<std::string>& addresses,
                    const GatewayRequest& request,
                    const std::string& token,
                    std::chrono::milliseconds limit,
                    Handler handler,
                    IsEnough is_enough) {
  if (!transfers_) {
    transfers_ = std::make_unique<Transfers>(loop_, settings_);
  }
  transfers_->cancel();
  if (!transfers_->is_loaded()) {
    transfers_->answer_later(
        {HttpError::Kind::no_library,
         "cannot load libcurl (" + transfers_->problem() + ")"},
        std::move(handler));
    return;
  }
  std::string entry;  // libcurl's "host:port:address,address"
  for (const std::string& address : addresses) {
    entry += (entry.empty()
                  ? endpoint.host + ":" + std::to_string(endpoint.port) + ":"
                  : ",") +
             address;
  }
  transfers_->set_addresses(entry);
  transfers_->start(url_of(settings_, endpoint) + request.path,
                    request,
                    token,
                    limit,
                    std::move(handler),
                    std::move(is_enough));
}

}  // namespace launcher
