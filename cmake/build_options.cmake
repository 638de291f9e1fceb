# ddp_build_options: compile options of all targets of this project. Not
# exported.
add_library(ddp_build_options INTERFACE)
target_compile_features(ddp_build_options INTERFACE cxx_std_20)
target_compile_options(
  ddp_build_options
  INTERFACE -fPIC # the same for libraries and programs, which share a PCH
            -Wall
            -Wextra
            -Wnon-virtual-dtor
            -Woverloaded-virtual
            -Wno-unused-parameter
            $<$<CXX_COMPILER_ID:GNU>:-Winvalid-pch>
            # With LibTorch's headers, GCC would run its garbage collector
            # several times per file and traverse the precompiled header each
            # time: 8 % of the time.
            $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1572864>
            # GCC 12 reports false overlaps in "text" + std::string.
            $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(DDP_CCACHE)
  target_compile_options(
    ddp_build_options
    INTERFACE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
              $<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>)
endif()

if(DDP_SANITIZE)
  target_compile_options(
    ddp_build_options
    INTERFACE -fno-omit-frame-pointer
              # GCC's documentation: with sanitizers this warning has false
              # positives.
              $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(ddp_build_options INTERFACE -fsanitize=${DDP_SANITIZE})
endif()
