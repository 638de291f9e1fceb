# Install and export: find_package(ddp CONFIG) gives ddp::ddp, ddp::dp and
# ddp::worker_env.
include(CMakePackageConfigHelpers)
set(_ddp_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/ddp")

install(
  DIRECTORY "${PROJECT_SOURCE_DIR}/ddp" "${PROJECT_SOURCE_DIR}/dp"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING
  PATTERN "*.h"
  PATTERN "detail" EXCLUDE)

if(DDP_BUILD_LIBRARY)
  # Members of what public headers declare.
  install(
    FILES "${PROJECT_SOURCE_DIR}/ddp/detail/reducer/bucket.h"
          "${PROJECT_SOURCE_DIR}/ddp/detail/reducer/bucket_plan.h"
          "${PROJECT_SOURCE_DIR}/ddp/detail/reducer/failure_flag.h"
          "${PROJECT_SOURCE_DIR}/ddp/detail/reducer/grad_hooks.h"
          "${PROJECT_SOURCE_DIR}/ddp/detail/reducer/gradient_buckets.h"
          "${PROJECT_SOURCE_DIR}/ddp/detail/reducer/scaled_copy.h"
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/ddp/detail")
  # What templates of public headers call.
  install(
    FILES "${PROJECT_SOURCE_DIR}/dp/detail/gather.h"
          "${PROJECT_SOURCE_DIR}/dp/detail/leaves.h"
          "${PROJECT_SOURCE_DIR}/dp/detail/local_replicas.h"
          "${PROJECT_SOURCE_DIR}/dp/detail/scatter.h"
          "${PROJECT_SOURCE_DIR}/dp/detail/split.h"
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/dp/detail")
  install(TARGETS ddp ddp_dp ddp_worker_env EXPORT ddp_targets)
  install(EXPORT ddp_targets NAMESPACE ddp:: FILE ddp_targets.cmake
          DESTINATION "${_ddp_package_dir}")

  configure_package_config_file(
    "${PROJECT_SOURCE_DIR}/cmake/ddpConfig.cmake.in"
    "${PROJECT_BINARY_DIR}/ddpConfig.cmake"
    INSTALL_DESTINATION "${_ddp_package_dir}")
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/ddpConfigVersion.cmake"
                                   COMPATIBILITY SameMinorVersion)
  install(
    FILES "${PROJECT_BINARY_DIR}/ddpConfig.cmake"
          "${PROJECT_BINARY_DIR}/ddpConfigVersion.cmake"
          "${PROJECT_SOURCE_DIR}/cmake/find_cuda_toolkit.cmake"
          "${PROJECT_SOURCE_DIR}/cmake/find_libtorch.cmake"
    DESTINATION "${_ddp_package_dir}")
endif()
