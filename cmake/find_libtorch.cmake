# Finds Torch, version DDP_TORCH_VERSION or newer: by Torch_DIR or
# CMAKE_PREFIX_PATH, else the torch that python3 imports, else the one that
# ./scripts/setup installed. Sets Torch_FOUND. Installed: consumers need it too.
if(NOT Torch_FOUND)
  find_package(Torch ${DDP_TORCH_VERSION} QUIET)
endif()

set(_ddp_pythons python3)
# Without this mark its installation was interrupted.
file(GLOB _ddp_marks "${DDP_CACHE_DIR}/venv/.torch-*")
if(_ddp_marks)
  list(APPEND _ddp_pythons "${DDP_CACHE_DIR}/venv/bin/python3")
endif()

foreach(_ddp_python IN LISTS _ddp_pythons)
  if(NOT Torch_FOUND)
    execute_process(
      COMMAND
        "${_ddp_python}" -c
        "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s and s.origin else '')"
      OUTPUT_VARIABLE _ddp_torch_root
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(_ddp_torch_root)
      unset(Torch_DIR CACHE)
      find_package(Torch ${DDP_TORCH_VERSION} QUIET
                   PATHS "${_ddp_torch_root}" NO_DEFAULT_PATH)
    endif()
  endif()
endforeach()

# The linker looks for LibTorch's NCCL where the CUDA Toolkit lies, too, and may
# take an older one there. What runs finds the wheel's own by itself.
set(_ddp_nccl "${TORCH_INSTALL_PREFIX}/../nvidia/nccl/lib")
if(TARGET torch AND EXISTS "${_ddp_nccl}")
  set_property(TARGET torch APPEND PROPERTY INTERFACE_LINK_OPTIONS
                                            "LINKER:-rpath-link,${_ddp_nccl}")
endif()
