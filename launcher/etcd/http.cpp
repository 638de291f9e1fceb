#include "launcher/etcd/http.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <utility>

#include "launcher/etcd/curl_functions.h"
#include "launcher/one_line.h"
#include "launcher/rendezvous/meeting_place.h"

namespace launcher {
namespace {

constexpr const char* kCurlNames[] = {
    "libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"};

/// What has come of an answer.
struct Body {
  std::string text{};
  const std::function<bool(std::string_view)>& is_enough;
  bool was_enough = false;
};

size_t take_bytes(char* bytes, size_t size, size_t count, void* user) {
  Body& body = *static_cast<Body*>(user);
  body.text.append(bytes, size * count);
  body.was_enough = body.is_enough && body.is_enough(body.text);
  // Another number than was given ends the transfer.
  return body.was_enough || body.text.size() > kLongestGatewayAnswer
             ? 0
             : size * count;
}

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

/// An endpoint that swallows what is sent to it takes little of the time in
/// which another one can answer.
std::chrono::milliseconds connect_time(const EtcdSettings& settings) {
  constexpr std::chrono::milliseconds kLeast{1'000};
  const auto count = static_cast<int>(settings.endpoints.size());
  return std::max(kLeast, settings.request_time / count);
}

/// A server that wants another certificate says so once TLS has begun.
bool is_refusal_of_tls(const EtcdSettings& settings,
                       int code,
                       const std::string& text) {
  return settings.has_tls && code == curl::kNothingRead &&
         text.find("alert") != std::string::npos;
}

}  // namespace

std::string url_of(const EtcdSettings& settings, const Endpoint& endpoint) {
  return (settings.has_tls ? "https://" : "http://") + text_of(endpoint);
}

std::string etcd_name(const EtcdSettings& settings) {
  std::string name = "etcd at ";
  for (const Endpoint& endpoint : settings.endpoints) {
    name += (name.back() == ' ' ? "" : ",") + text_of(endpoint);
  }
  return name;
}

class EtcdHttp::Library {
 public:
  Library() {
    for (const char* name : kCurlNames) {
      library_ = library_ != nullptr ? library_ : ::dlopen(name, RTLD_NOW);
      const char* error = library_ != nullptr ? nullptr : ::dlerror();
      if (error != nullptr && problem_.empty()) {
        problem_ = on_one_line(error);
      }
    }
    if (has("curl_easy_init") && has("curl_easy_setopt") &&
        has("curl_easy_perform") && has("curl_easy_getinfo")) {
      call<int>("curl_global_init", curl::kGlobalAll);
      handle_ = call<curl::Handle>("curl_easy_init");
    }
  }
  ~Library() {
    if (handle_ != nullptr) {
      call<void>("curl_easy_cleanup", handle_);
    }
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  bool is_there() const { return handle_ != nullptr; }
  /// Why it is not, with its name.
  std::string problem() const {
    return problem_.empty() ? "libcurl.so.4 lacks functions" : problem_;
  }

  template <typename Result, typename... Arguments>
  Result call(const char* name, Arguments... arguments) const {
    const auto function =
        reinterpret_cast<Result (*)(Arguments...)>(::dlsym(library_, name));
    return function(arguments...);
  }

  /// Of a function whose last argument has any type.
  template <typename Value>
  void set(int option, Value value) const {
    variadic("curl_easy_setopt")(handle_, option, value);
  }
  template <typename Value>
  void get(int what, Value* value) const {
    variadic("curl_easy_getinfo")(handle_, what, value);
  }
  int perform() const { return call<int>("curl_easy_perform", handle_); }

 private:
  using Variadic = int (*)(curl::Handle, int, ...);

  bool has(const char* name) const {
    return library_ != nullptr && ::dlsym(library_, name) != nullptr;
  }
  Variadic variadic(const char* name) const {
    return reinterpret_cast<Variadic>(::dlsym(library_, name));
  }

  std::string problem_;
  void* library_ = nullptr;
  curl::Handle handle_ = nullptr;
};

EtcdHttp::EtcdHttp(const EtcdSettings& settings)
    : settings_(settings), library_(std::make_unique<Library>()) {}

EtcdHttp::~EtcdHttp() = default;

std::variant<HttpAnswer, HttpError> EtcdHttp::post(
    const Endpoint& endpoint,
    const GatewayRequest& request,
    const std::string& token,
    std::chrono::milliseconds limit,
    const std::function<bool(std::string_view body)>& is_enough) {
  const Library& library = *library_;
  if (!library.is_there()) {
    return HttpError{HttpError::Kind::no_library,
                     "cannot load libcurl (" + library.problem() + ")"};
  }
  std::array<char, curl::kErrorSize> error{};
  Body body{.is_enough = is_enough};
  const std::string url = url_of(settings_, endpoint) + request.path;
  library.set(curl::kUrl, url.c_str());
  library.set(curl::kProxy, "");  // etcd is on this side of any
  library.set(curl::kPostFields, request.body.c_str());
  library.set(curl::kPostFieldSize, static_cast<long>(request.body.size()));
  library.set(curl::kErrorBuffer, error.data());
  library.set(curl::kNoSignal, 1L);
  library.set(curl::kTimeoutMs, static_cast<long>(limit.count()));
  library.set(
      curl::kConnectTimeoutMs,
      static_cast<long>(std::min(limit, connect_time(settings_)).count()));
  library.set(curl::kWriteFunction, curl::Write(&take_bytes));
  library.set(curl::kWriteData, static_cast<void*>(&body));
  if (!settings_.certificate.empty()) {
    library.set(curl::kCertificate, settings_.certificate.c_str());
  }
  if (!settings_.key.empty()) {
    library.set(curl::kKey, settings_.key.c_str());
  }
  if (!settings_.authorities.empty()) {
    library.set(curl::kAuthorities, settings_.authorities.c_str());
  }
  const std::string authorization = "Authorization: " + token;
  curl::List headers =
      library.call<curl::List>("curl_slist_append",
                               curl::List(nullptr),
                               "Content-Type: application/json");
  if (!token.empty()) {
    headers = library.call<curl::List>(
        "curl_slist_append", headers, authorization.c_str());
  }
  library.set(curl::kHttpHeader, headers);
  const int code = library.perform();
  library.set(curl::kHttpHeader, curl::List(nullptr));
  library.call<void>("curl_slist_free_all", headers);
  library.set(curl::kErrorBuffer, static_cast<char*>(nullptr));
  const bool is_ended_watch =
      is_enough && (body.was_enough || code == curl::kTimedOut);
  if (code != curl::kOk && !is_ended_watch) {
    const std::string text =
        error.front() != '\0'
            ? std::string(error.data())
            : library.call<const char*>("curl_easy_strerror", code);
    // As who wants TLS answers one who does not begin it.
    const bool may_want_tls = !settings_.has_tls && code == curl::kEmptyReply;
    return HttpError{
        is_refusal_of_tls(settings_, code, text) ? HttpError::Kind::tls
                                                 : kind_of(code),
        on_one_line(text) +
            (may_want_tls ? " (as if it wanted --rdzv-conf protocol=https)"
                          : "")};
  }
  long status = 0;
  const char* address = nullptr;
  library.get(curl::kResponseCode, &status);
  library.get(curl::kLocalAddress, &address);
  return HttpAnswer{.status = static_cast<int>(status),
                    .body = std::move(body.text),
                    .local_address = address != nullptr ? address : ""};
}

}  // namespace launcher
