#!/bin/bash
# Builds, checks and times the CUDA kernels on a machine with a Hopper GPU and nvcc; needs nothing
# else of the project. Usage: bench/cuda/run_kernels.sh [check|bench|all] (from anywhere).
# BUILD_DIR (default build/kernels) keeps objects; binaries already there are used as they are.
set -euo pipefail
cd "$(dirname "$0")/../.."
what=${1:-all}
build=${BUILD_DIR:-build/kernels}
mkdir -p "$build"
cuda=${CUDA_HOME:-/usr/local/cuda}
flags="-std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -lineinfo -Isrc"

build_all() {
    local pids=() file
    for file in src/ops/cuda/*.cu bench/cuda/kernels_check.cu bench/cuda/kernels_bench.cu; do
        "$cuda/bin/nvcc" $flags -c "$file" -o "$build/$(basename "$file" .cu).o" &
        pids+=($!)
    done
    local pid
    for pid in "${pids[@]}"; do wait "$pid"; done
    local objects
    cc -std=gnu17 -O2 -Isrc -c src/ops/cuda/cuda_sizes.c -o "$build/cuda_sizes.o"
    objects=$(for file in src/ops/cuda/*.cu; do echo "$build/$(basename "$file" .cu).o"; done)
    objects="$objects $build/cuda_sizes.o"
    "$cuda/bin/nvcc" $flags "$build/kernels_check.o" $objects -o "$build/kernels_check"
    "$cuda/bin/nvcc" $flags "$build/kernels_bench.o" $objects -o "$build/kernels_bench" -lcublasLt
}

[ -x "$build/kernels_check" ] && [ -x "$build/kernels_bench" ] || build_all
export LD_LIBRARY_PATH=$cuda/lib64:${LD_LIBRARY_PATH:-}
status=0
if [ "$what" != bench ]; then timeout 100 "$build/kernels_check" || status=$?; fi
if [ "$what" != check ]; then timeout 150 "$build/kernels_bench" || status=$?; fi
exit $status
