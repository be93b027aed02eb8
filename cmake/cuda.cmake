# The CUDA backend: kernels by nvcc for Hopper; the runtime is linked in, the driver and cuBLASLt are
# loaded when a GPU is used, so one program serves machines with and without one.
if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
  set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
set(CMAKE_CUDA_ARCHITECTURES 90a-real) # the "a": wgmma and setmaxnreg
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)

file(GLOB cuda_sources CONFIGURE_DEPENDS src/ops/cuda/*.c src/ops/cuda/*.cu)
list(FILTER cuda_sources EXCLUDE REGEX "/cuda_absent\\.c$")
target_sources(ops PRIVATE ${cuda_sources})
target_link_libraries(ops PUBLIC CUDA::cudart_static ${CMAKE_DL_LIBS})
set_target_properties(ops PROPERTIES CUDA_ARCHITECTURES ${CMAKE_CUDA_ARCHITECTURES}
                                      CUDA_RUNTIME_LIBRARY Static)
target_compile_definitions(ops PUBLIC VLLM_CUDA)
set(cuda_options -std=c++17 -O3 -lineinfo
                 -Xcompiler=-Wall,-Wextra,-fvisibility=hidden)
if(VLLM_WERROR)
  list(APPEND cuda_options -Werror=all-warnings)
endif()
target_compile_options(ops PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_options}>")
