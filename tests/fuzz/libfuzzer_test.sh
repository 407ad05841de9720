#!/usr/bin/env bash
# Runs a fuzzer for a while. Usage:
#   libfuzzer_test.sh FUZZER CORPUS FOLDER SECONDS
# What it finds is left in FOLDER/found.
set -euo pipefail

fuzzer=$1 corpus=$2 folder=$3 seconds=$4
rm -rf "$folder/inputs"
mkdir -p "$folder/inputs" "$folder/found"
if ! "$fuzzer" -max_total_time="$seconds" -timeout=30 -artifact_prefix="$folder/found/" -print_final_stats=1 \
    "$folder/inputs" "$corpus" > "$folder/log" 2>&1; then
  echo "failed; what it was fed is in $folder/found:"
  tail -40 "$folder/log"
  exit 1
fi
inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$folder/log")
echo "$inputs inputs in $seconds s"
[ "$inputs" -gt "$(find "$corpus" -type f | wc -l)" ]  # else it has tried nothing new
