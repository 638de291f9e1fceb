#pragma once

#include <cstddef>

// The parts of <curl/curl.h> that ddprun uses. With them ddprun builds and runs
// without libcurl; only jobs that use etcd load it. The numbers are part of
// libcurl's ABI, which has not changed since 7.21. gateway_test compares them
// with the header if it is installed.
namespace launcher::curl {

using Handle = void*;
using List = void*;  // a list of headers
using Write = size_t (*)(char* bytes, size_t size, size_t count, void* user);
using SetSocket = int (*)(void* user, int fd, int purpose);
using WatchSocket =
    int (*)(Handle easy, int fd, int what, void* user, void* socket);
using SetTimer = int (*)(Handle multi, long milliseconds, void* user);

/// CURLMsg
struct Message {
  int is;
  Handle easy;
  union {
    void* whatever;
    int result;
  } data;
};

inline constexpr const char* kFunctions[] = {"curl_global_init",
                                             "curl_easy_init",
                                             "curl_easy_setopt",
                                             "curl_easy_getinfo",
                                             "curl_easy_strerror",
                                             "curl_easy_cleanup",
                                             "curl_slist_append",
                                             "curl_slist_free_all",
                                             "curl_multi_init",
                                             "curl_multi_setopt",
                                             "curl_multi_add_handle",
                                             "curl_multi_remove_handle",
                                             "curl_multi_socket_action",
                                             "curl_multi_info_read",
                                             "curl_multi_cleanup"};

// CURLOPT_...: longs, pointers and functions have separate ranges.
inline constexpr int kWriteData = 10000 + 1;
inline constexpr int kUrl = 10000 + 2;
inline constexpr int kProxy = 10000 + 4;
inline constexpr int kErrorBuffer = 10000 + 10;
inline constexpr int kPostFields = 10000 + 15;
inline constexpr int kHttpHeader = 10000 + 23;
inline constexpr int kCertificate = 10000 + 25;
inline constexpr int kKey = 10000 + 87;
inline constexpr int kResolve = 10000 + 203;
inline constexpr int kAuthorities = 10000 + 65;
inline constexpr int kWriteFunction = 20000 + 11;
inline constexpr int kSocketOptionsFunction = 20000 + 148;
inline constexpr int kPostFieldSize = 60;
inline constexpr int kNoSignal = 99;
inline constexpr int kTimeoutMs = 155;
inline constexpr int kConnectTimeoutMs = 156;

// CURLMOPT_...
inline constexpr int kSocketFunction = 20000 + 1;
inline constexpr int kSocketData = 10000 + 2;
inline constexpr int kTimerFunction = 20000 + 4;
inline constexpr int kTimerData = 10000 + 5;

// CURL_POLL_..., CURL_SOCKET_TIMEOUT, CURLMSG_DONE
inline constexpr int kPollIn = 1;
inline constexpr int kPollOut = 2;
inline constexpr int kPollRemove = 4;
inline constexpr int kSocketTimeout = -1;
inline constexpr int kDone = 1;

// CURLINFO_...
inline constexpr int kResponseCode = 0x200000 + 2;
inline constexpr int kLocalAddress = 0x100000 + 41;

// CURLE_...
inline constexpr int kOk = 0;
inline constexpr int kNoSuchProtocol = 1;
inline constexpr int kStrangeReply = 8;
inline constexpr int kWriteStopped = 23;
inline constexpr int kTimedOut = 28;
inline constexpr int kTlsConnect = 35;
inline constexpr int kEmptyReply = 52;
inline constexpr int kNothingRead = 56;
inline constexpr int kTlsCertificate = 58;
inline constexpr int kTlsCipher = 59;
inline constexpr int kTlsPeer = 60;
inline constexpr int kTlsAuthorities = 77;

inline constexpr size_t kErrorSize = 256;
inline constexpr long kGlobalAll = 3;

}  // namespace launcher::curl
