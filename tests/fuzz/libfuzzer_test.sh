#!/usr/bin/env bash
# Builds the fuzzers with clang (the preset fuzz), and runs each for a while. Usage:
#   libfuzzer_test.sh SOURCE_DIR BUILD_DIR SECONDS [CMAKE_OPTION ...]
# What a fuzzer finds is left in BUILD_DIR/found. Exit code 77: skipped, the output says why.
set -euo pipefail

source=$1 build=$2 seconds=$3
shift 3
fuzzers=(codec door frames http)

echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
  clang++-14 -x c++ -fsanitize=fuzzer,address -o /dev/null - 2>/dev/null || {
  echo "skipped: there is no clang 14 with libFuzzer here (apt-get install clang-14 libclang-rt-14-dev)"
  exit 77
}

cd "$source"
began=$SECONDS
cmake --preset fuzz -B "$build" "$@" > /dev/null
cmake --build "$build" --parallel 2 --target "${fuzzers[@]/#/fuzz_}" > "$build/log" || { tail -50 "$build/log"; exit 1; }
echo "built in $((SECONDS - began)) s"

mkdir -p "$build/found"
pids=()
for name in "${fuzzers[@]}"; do
  rm -rf "$build/inputs_$name"
  mkdir "$build/inputs_$name"
  "$build/bin/fuzz_$name" -max_total_time="$seconds" -timeout=30 -artifact_prefix="$build/found/$name-" -print_final_stats=1 \
    "$build/inputs_$name" "tests/fuzz/corpus/$name" > "$build/$name.log" 2>&1 &
  pids+=($!)
done
failed=0
for i in "${!fuzzers[@]}"; do
  name=${fuzzers[i]}
  if wait "${pids[i]}"; then
    echo "fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log") inputs in $seconds s"
  else
    echo "fuzz_$name failed; what it was fed is in $build/found:"
    tail -40 "$build/$name.log"
    failed=1
  fi
done
exit "$failed"
