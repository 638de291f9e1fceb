#pragma once

/// DDP_ADDRESS_SANITIZER and DDP_THREAD_SANITIZER are defined if this file is
/// compiled with the sanitizer, by GCC or Clang.
#if defined(__SANITIZE_ADDRESS__)
#define DDP_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DDP_ADDRESS_SANITIZER
#endif
#endif

#if defined(__SANITIZE_THREAD__)
#define DDP_THREAD_SANITIZER
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DDP_THREAD_SANITIZER
#endif
#endif
