#include "launcher/etcd/http.h"

#include <dlfcn.h>

#include <array>
#include <utility>

#include "launcher/etcd/curl_functions.h"
#include "launcher/one_line.h"

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

}  // namespace

std::string url_of(const EtcdSettings& settings) {
  const bool is_ip6 = settings.endpoint.host.find(':') != std::string::npos;
  return (settings.has_tls ? "https://" : "http://") +
         (is_ip6 ? "[" + settings.endpoint.host + "]"
                 : settings.endpoint.host) +
         ":" + std::to_string(settings.endpoint.port);
}

class EtcdHttp::Library {
 public:
  Library() {
    for (const char* name : kCurlNames) {
      library_ = library_ != nullptr ? library_ : ::dlopen(name, RTLD_NOW);
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

  void* library_ = nullptr;
  curl::Handle handle_ = nullptr;
};

EtcdHttp::EtcdHttp(const EtcdSettings& settings)
    : settings_(settings), library_(std::make_unique<Library>()) {}

EtcdHttp::~EtcdHttp() = default;

std::variant<HttpAnswer, HttpError> EtcdHttp::post(
    const GatewayRequest& request,
    const std::string& token,
    std::chrono::milliseconds limit,
    const std::function<bool(std::string_view body)>& is_enough) {
  const Library& library = *library_;
  if (!library.is_there()) {
    return HttpError{HttpError::Kind::no_library, "libcurl.so.4 is missing"};
  }
  std::array<char, curl::kErrorSize> error{};
  Body body{.is_enough = is_enough};
  const std::string url = url_of(settings_) + request.path;
  library.set(curl::kUrl, url.c_str());
  library.set(curl::kProxy, "");  // etcd is on this side of any
  library.set(curl::kPostFields, request.body.c_str());
  library.set(curl::kPostFieldSize, static_cast<long>(request.body.size()));
  library.set(curl::kErrorBuffer, error.data());
  library.set(curl::kNoSignal, 1L);
  library.set(curl::kTimeoutMs, static_cast<long>(limit.count()));
  library.set(
      curl::kConnectTimeoutMs,
      static_cast<long>(std::min(limit, settings_.request_time).count()));
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
    return HttpError{kind_of(code), on_one_line(text)};
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
