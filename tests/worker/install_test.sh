#!/bin/sh
# Installs the worker library to a temporary prefix, and builds and runs a consumer of it both ways:
# find_package(prd) and pkg-config.
# Usage: install_test.sh BUILD_DIR SOURCE_DIR CXX CXX_FLAGS
set -eu
build=$1
source=$2/tests/worker/consumer
cxx=$3
flags=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --component worker --prefix "$work/prefix" > "$work/log" ||
  { cat "$work/log"; exit 1; }
lib=$(dirname "$(find "$work/prefix" -name libprd.so)")

cmake -S "$source" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/prefix" \
      -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_FLAGS="$flags" > "$work/log" &&
  cmake --build "$work/consumer" >> "$work/log" || { cat "$work/log"; exit 1; }
"$work/consumer/consumer"

PKG_CONFIG_PATH=$lib/pkgconfig
export PKG_CONFIG_PATH
"$cxx" -std=c++20 $flags "$source/main.cc" -o "$work/with_pkg_config" \
  $(pkg-config --define-variable=prefix="$work/prefix" --cflags --libs prd)
LD_LIBRARY_PATH=$lib "$work/with_pkg_config"

# Where the CUDA module is not installed, it starts as well.
rm -f "$lib/libprd_cuda.so"
LD_LIBRARY_PATH=$lib "$work/with_pkg_config"

# Nothing but the public interface leaves the library.
if nm -DC --defined-only "$lib/libprd.so" | grep -v " prd::Session::" | grep " [TWBDVR] "; then
  echo "libprd.so exports more than prd::Session"
  exit 1
fi
