#!/bin/sh
# Installs the worker library to a temporary prefix. Builds and runs a consumer of it, and one that
# was written against the header before, with find_package(prd) and with pkg-config.
# Usage: install_test.sh BUILD_DIR SOURCE_DIR CC CXX
set -eu
build=$1
source=$2/tests/worker/consumer
cc=$3
cxx=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --component worker --prefix "$work/prefix" > "$work/log" ||
  { cat "$work/log"; exit 1; }
lib=$(dirname "$(find "$work/prefix" -name libprd.so)")

cmake -S "$source" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/prefix" \
      -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" > "$work/log" &&
  cmake --build "$work/consumer" >> "$work/log" || { cat "$work/log"; exit 1; }
"$work/consumer/consumer"
"$work/consumer/old_consumer"
"$work/consumer/c_consumer"

PKG_CONFIG_PATH=$lib/pkgconfig
export PKG_CONFIG_PATH
use=$(pkg-config --cflags --libs prd)
case $use in
  *"$work/prefix"*|*"$lib/pkgconfig/.."*) ;;
  *) echo "prd.pc does not lead to the prefix: $use"; exit 1 ;;
esac
"$cxx" -std=c++20 -Wall -Wextra -Wpedantic -Werror "$source/main.cc" \
  -o "$work/with_pkg_config" $use
"$cxx" -std=c++20 -Wno-deprecated-declarations "$source/old.cc" \
  -o "$work/old_with_pkg_config" $use
LD_LIBRARY_PATH=$lib "$work/with_pkg_config"
LD_LIBRARY_PATH=$lib "$work/old_with_pkg_config"

# The C interface needs no C++.
"$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror "$source/main.c" -o "$work/in_c" $use
LD_LIBRARY_PATH=$lib "$work/in_c"

# The compiler says of each old name that it is one.
"$cxx" -std=c++20 -fsyntax-only "$source/old.cc" $use 2> "$work/log"
for name in patience GroupWays group_ways; do
  grep -q "$name.* deprecated" "$work/log" || { echo "$name is not deprecated"; exit 1; }
done

# Where the CUDA module is not installed, it starts as well.
rm -f "$lib/libprd_cuda.so"
LD_LIBRARY_PATH=$lib "$work/with_pkg_config"

# What the daemon's part names is where it was installed.
# (Under a sanitizer the daemon may not be built.)
if [ -x "$build/bin/prd" ]; then
  cmake --install "$build" --component daemon --prefix "$work/prefix" > "$work/log" ||
    { cat "$work/log"; exit 1; }
  grep -q "^ExecStart=$work/prefix/bin/prd --config" "$work/prefix/lib/systemd/system/prd.service" ||
    { echo "prd.service names another prd"; exit 1; }
  grep -q "^Documentation=file://$work/prefix/share/prd/prd.toml" \
    "$work/prefix/lib/systemd/system/prd.service" || { echo "prd.service names other samples"; exit 1; }
  "$work/prefix/bin/prd" --config "$work/none" 2> "$work/log" && exit 1
  samples=$(sed -n 's/.*A commented sample is in \(.*\); copy it.*/\1/p' "$work/log")
  test "$samples" = "$work/prefix/share/prd" && test -f "$samples/prd.toml" ||
    { echo "prd names samples in $samples"; cat "$work/log"; exit 1; }
  empty=$(find "$work/prefix/share" -type d -empty)
  test -z "$empty" || { echo "empty folders are installed: $empty"; exit 1; }
fi

# Nothing but the public interface leaves the library.
if nm -DC --defined-only "$lib/libprd.so" | grep -v -e " prd::Session::" -e " T prd_[a-z_]*$" |
  grep " [TWBDVR] "; then
  echo "libprd.so exports more than prd::Session and its C interface"
  exit 1
fi
