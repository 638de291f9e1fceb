# ddp_nccl_headers: nccl.h of the package beside LibTorch's wheel, which has the
# version with which LibTorch was built; otherwise the machine's nccl.h.
find_path(DDP_NCCL_INCLUDE_DIR nccl.h
          HINTS "${TORCH_INSTALL_PREFIX}/../nvidia/nccl/include" ENV NCCL_HOME
                "${CUDA_TOOLKIT_ROOT_DIR}"
          PATH_SUFFIXES include)
if(NOT DDP_NCCL_INCLUDE_DIR)
  message(
    FATAL_ERROR
      "Expected nccl.h, but found none. Set DDP_NCCL_INCLUDE_DIR to the folder "
      "with that of the NCCL minor version LibTorch was built with: PyPI's "
      "nvidia-nccl-cu12 and nvidia-nccl-cu13 have it. `pip show torch` names the "
      "package and version that LibTorch's wheel requires.")
endif()
add_library(ddp_nccl_headers INTERFACE IMPORTED GLOBAL)
target_include_directories(ddp_nccl_headers SYSTEM
                           INTERFACE "${DDP_NCCL_INCLUDE_DIR}")
