# Two commands do everything, set-up included: `make run` and `make test`.
.PHONY: run test lint asan tsan fuzz bench dist install clean help
.DEFAULT_GOAL := help

PORT ?= 8000
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 30

help:                            ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

build/.setup-build: scripts/setup
	scripts/setup build && mkdir -p build && touch $@

build/.setup: scripts/setup tests/package-lock.json
	scripts/setup test && mkdir -p build && touch $@

run: build/.setup-build                ## build, and serve the demo model on port 8000 (PORT=...)
	cmake --preset release && cmake --build --preset release --target vllm
	build/release/vllm serve models/demo --port $(PORT)

test: build/.setup               ## build, and run every test that needs no GPU
	cmake --preset debug -DVLLM_WERROR=ON && cmake --build --preset debug && ctest --preset debug

asan: build/.setup               ## the same tests under address and undefined-behaviour sanitizers
	cmake --preset asan && cmake --build --preset asan && ctest --preset asan

tsan: build/.setup               ## the tests of the threaded parts under the thread sanitizer
	cmake --preset tsan && cmake --build --preset tsan && ctest --preset tsan

lint: build/.setup               ## formatting, clang-tidy, cppcheck, include direction
	scripts/lint

fuzz: build/.setup               ## each fuzzer for FUZZ_SECONDS (30) from its corpus
	cmake --preset fuzz && cmake --build --preset fuzz
	scripts/fuzz $(FUZZ_SECONDS)

bench: build/.setup-build              ## the benchmarks, in release
	cmake --preset release -DVLLM_BENCH=ON && cmake --build --preset release

dist: build/.setup-build               ## with the CUDA backend, as a folder to carry: build/dist
	cmake --preset cuda -DVLLM_TESTS=OFF && cmake --build --preset cuda --target vllm
	scripts/make_dist build/cuda build/dist

install: build/.setup-build            ## the program into PREFIX (/usr/local)
	cmake --preset release && cmake --build --preset release --target vllm
	cmake --install build/release --prefix $(PREFIX)

clean:                           ## forget all builds
	rm -rf build
