# Installs and exports ddp::ddp, ddp::dp, ddp::exported and ddp::base for find_package(ddp
# CONFIG).
include(CMakePackageConfigHelpers)
include(public_headers)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE"
              "${PROJECT_SOURCE_DIR}/docs/third_party_licenses.txt"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}")
set(_ddp_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/ddp")

if(DDP_BUILD_LIBRARY)
  # Public headers, and the internal headers that they include.
  ddp_public_headers(_ddp_public_headers)
  ddp_headers_behind(_ddp_installed_headers ${_ddp_public_headers})
  foreach(header IN LISTS _ddp_installed_headers)
    get_filename_component(_ddp_folder "${header}" DIRECTORY)
    install(FILES "${PROJECT_SOURCE_DIR}/${header}"
            DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${_ddp_folder}")
  endforeach()
  install(TARGETS ddp ddp_dp ddp_exported ddp_base EXPORT ddp_targets)
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
