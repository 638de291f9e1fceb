#pragma once

/// The version of this project, which CMake reads from here. A program can
/// compare it, for example `#if DDP_VERSION >= 1000`. The second number changes
/// with each change after which programs must be compiled again;
/// docs/compatibility.md has the rules.
#define DDP_VERSION_MAJOR 0
/// The second number of the version.
#define DDP_VERSION_MINOR 1
/// The third number of the version.
#define DDP_VERSION_PATCH 0

/// One number: 1000000 * major + 1000 * minor + patch.
#define DDP_VERSION \
  (1000000 * DDP_VERSION_MAJOR + 1000 * DDP_VERSION_MINOR + DDP_VERSION_PATCH)

#define DDP_VERSION_TEXT_OF(x) #x
#define DDP_VERSION_JOIN(major, minor, patch) \
  DDP_VERSION_TEXT_OF(major)                  \
  "." DDP_VERSION_TEXT_OF(minor) "." DDP_VERSION_TEXT_OF(patch)

/// The same as text: "0.1.0".
#define DDP_VERSION_TEXT \
  DDP_VERSION_JOIN(DDP_VERSION_MAJOR, DDP_VERSION_MINOR, DDP_VERSION_PATCH)
