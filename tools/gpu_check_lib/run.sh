# gpu-check run: the steps, each with a time limit, and the goals. Sourced by gpu-check.

total_s=560 # of all steps; each has a limit that only what hangs comes to: a first start of CUDA may take half a minute

# Sets bin, data, module, libraries and loader: where the programs are and how they are started.
find_programs() {
  loader=()
  libraries=""
  if [ -f "$here/PACK" ]; then
    bin="$here/bin"
    data="$here/data"
    module="$here/lib/libprd_cuda.so"
    local needed found
    needed="$(field "$(cat "$here/PACK")" glibc)"
    found="$(getconf GNU_LIBC_VERSION 2>/dev/null || true)"
    found="${found##* }"
    if [ "$(printf '%s\n' "$needed" "${found:-0}" | sort -V | head -n 1)" != "$needed" ]; then
      # This machine's glibc is older than the one that all of it was linked with: the packed one is used.
      loader=("$here/glibc/ld-linux-x86-64.so.2" --library-path "$here/glibc:$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
    fi
    libraries="$here/lib"
  else
    bin="${PRD_BIN:-$here/../build/release/bin}"
    data="${PRD_DATA:-/usr/share/datasets/fashion-mnist}"
    module="$(first_of "$bin" libprd_cuda.so)"
  fi
  [ -x "$bin/prdbench" ] || { echo "gpu-check: there is no prdbench in $bin: build first (gpu-check --help)" >&2; exit 1; }
}

# first_of BIN FILE: where a build has that library; nothing if it has not.
first_of() {
  local path
  for path in "$1/$2" "$1/../lib/$2" "$1/../worker/$2" "$1/../worker/cuda/$2" "$1/../tests/standin/$2"; do
    if [ -f "$path" ]; then
      echo "$path"
      return
    fi
  done
}

start() {
  local program="$1"
  shift
  # Not for what is this machine's own.
  [ -z "$libraries" ] || export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  exec "${loader[@]}" "$bin/$program" "$@"
}

# step NAME LIMIT_S COMMAND..: what it prints goes to the results, and how it ended.
step() {
  local name="$1" limit="$2" began=$SECONDS code=0 left=$((total_s - SECONDS)) out line spent=""
  shift 2
  [ "$left" -ge 5 ] || spent="no time of $total_s s is left"
  [ "$stopped" = false ] || spent="gpu-check was stopped"
  if [ -n "$spent" ]; then
    wrong=1
    say "{\"step\":\"$name\",\"ok\":false,\"stand_in\":$stand_in,\"why\":\"$spent\"}"
    return
  fi
  [ "$limit" -lt "$left" ] || { limit="$left"; spent=", which was all that was left of $total_s s"; }
  out="$work/$name.out"
  printf '== %s: %s\n' "$name" "$*" >>"$log"
  : >"$out"
  # A process group of its own, of which nothing is left when it ends.
  timeout -k 5 "$limit" bash -c 'source "$0"; "$@"' "$work/functions" "$@" >"$out" 2>>"$log" &
  running=$!
  wait "$running" || code=$?
  while kill -0 "$running" 2>/dev/null; do # a signal has ended the wait
    code=0
    wait "$running" || code=$?
  done
  running=""
  cat "$work"/nccl.* >>"$log" 2>/dev/null || true
  rm -f "$work"/nccl.*
  while IFS= read -r line; do
    if [[ $line == "{"* ]]; then say "$line"; else printf '%s\n' "$line" >>"$log"; fi
  done <"$out"
  local ok=true why=""
  if [ "$code" -ne 0 ]; then
    ok=false
    wrong=1
    why="$(field "$(tail -n 1 "$out")" why)"
    why=",\"why\":$(quote "${why:-$(tail -n 1 "$log")}")"
    if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then why=",\"why\":\"not done after $limit s$spent\""; fi
    [ "$stopped" = false ] || why=",\"why\":\"gpu-check was stopped\""
  fi
  say "{\"step\":\"$name\",\"ok\":$ok,\"stand_in\":$stand_in,\"exit\":$code,\"seconds\":$((SECONDS - began))$why}"
}

# What a machine without one is told at once.
machine() {
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader >"$work/gpus" || {
    echo "there is no NVIDIA driver: nvidia-smi does not work" >&2
    return 1
  }
  cat "$work/gpus" >&2
  local gpus=() gpu
  while IFS= read -r gpu; do gpus+=("$(quote "$gpu")"); done <"$work/gpus"
  printf '{"machine":"gpus","gpus":[%s],"nccl":%s,"cores":%d}\n' "$(IFS=,; echo "${gpus[*]}")" \
    "$(quote "${PRD_NCCL_LIBRARY:-}")" "$(nproc)"
  [ -n "${PRD_NCCL_LIBRARY:-}" ] || { echo "NCCL is not found: PRD_NCCL_LIBRARY may name it" >&2; return 1; }
}

gpu_test() {
  (start prd-gpu-test --require-gpu "--device=${device#cuda:}") 2>&1 | tee -a /dev/stderr | {
    local line passed="" failed=0
    while IFS= read -r line; do
      [[ $line =~ ^\[\ \ PASSED\ \ \]\ ([0-9]+)\ test ]] && passed="${BASH_REMATCH[1]}"
      [[ $line =~ ^\[\ \ FAILED\ \ \]\ ([0-9]+)\ test ]] && failed="${BASH_REMATCH[1]}"
    done
    printf '{"check":"gpu-test","passed":%s,"failed":%d}\n' "${passed:-null}" "$failed"
  }
}

# Where the Python package is, and an interpreter whose PyTorch sees a GPU; nothing where one of them is not.
find_torch() {
  package="" python=""
  local candidate
  for candidate in "$here/python" "$here/../worker/python"; do
    if [ -d "$candidate/prd" ]; then package="$candidate"; break; fi
  done
  [ -n "$package" ] || return 0
  for candidate in python3 /opt/*/.venv/bin/python3 /opt/*/bin/python3; do
    command -v "$candidate" >/dev/null || continue
    if "$candidate" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then python="$candidate"; return 0; fi
  done
}

# As a user has it: the package's own library and module, and PyTorch's NCCL.
torch_check() {
  unset PRD_NCCL_LIBRARY PRD_CUDA_MODULE CUDA_MODULE_LOADING
  [ -d "$package/prd/.libs" ] || export PRD_LIBRARY="$bin/../worker/libprd.so.0" PRD_DAEMON="$bin/prd"
  PYTHONPATH="$package" exec "$python" -B "$here/gpu_check_lib/torch_check.py" "$@"
}

parse() {
  out=gpu-check.jsonl
  device=cuda:0
  quick=false
  stand_in=false
  while [ $# -gt 0 ]; do
    case "$1" in
      --out) [ $# -gt 1 ] || refuse "--out needs a file"; out="$2"; shift 2 ;;
      --device) [ $# -gt 1 ] || refuse "--device needs cuda:N"; device="$2"; shift 2 ;;
      --quick) quick=true; shift ;;
      --stand-in) stand_in=true; shift ;;
      -h | --help) help; exit 0 ;;
      *) refuse "found '$1', allowed are --out, --device, --quick and --stand-in" ;;
    esac
  done
  [ "$device" != cuda ] || device=cuda:0
  [[ $device =~ ^cuda:[0-9]+$ ]] || refuse "--device: found '$device', allowed is cuda:N"
  local folder
  folder="$(cd "$(dirname "$out")" 2>/dev/null && pwd)" || refuse "--out: found '$out', and there is no folder $(dirname "$out")"
  results="$folder/$(basename "$out")"
  [ ! -e "$results" ] || [ -f "$results" ] || refuse "--out: found '$out', which is no file"
  log="$results.log"
}

# What the steps' own shells need to know.
write_functions() {
  {
    echo 'set -euo pipefail'
    declare -p bin data work stand_in results libraries device here package python
    declare -p loader
    declare -f start machine gpu_test torch_check field quote thousandths reaches
    declare -f training training_config complain gone judge_training
  } >"$work/functions"
}

run_steps() {
  groups=200 accuracy=0.8
  local processes=6 elements=65536 bytes=(1048576 67108864) row=268435456 seconds=0.4
  # On the processor 1500 steps give 0.848 to 0.855 (5 seeds), 600 give 0.82 to 0.83, and 150 0.77 to 0.78.
  local steps=1500 step_ms=15
  local trainer="$device"
  [ "$quick" = false ] || { groups=24 seconds=0.02 steps=400 step_ms=25 accuracy=0.7; }
  if [ "$stand_in" = true ]; then
    [ "$quick" = true ] || groups=60
    elements=1024 bytes=(4096 262144) row=1048576 seconds=0.02 steps=150 step_ms=0 accuracy=0.5 trainer=cpu
  fi
  if [ "$stand_in" = false ]; then
    step machine 60 machine
    step gpu-test 120 gpu_test
  fi
  step kernels 90 start prdbench device --device "$device" --bytes "$row" --seconds "$seconds"
  step groups 120 start prdbench device --device "$device" --check groups --groups "$groups" \
    --processes "$processes" --elements "$elements"
  step reduce-2 90 start prdbench reduce --device "$device" --workers 2 --bytes "${bytes[@]}" --trials 1
  step reduce-4 120 start prdbench reduce --device "$device" --workers 4 --bytes "${bytes[@]}" --trials 1
  step training 120 training "$work/training" "$steps" "$step_ms" "$accuracy" "$trainer"
  step kill 90 start prdbench device --device "$device" --check kill --elements "$elements"
  step dtypes 90 start prdbench device --device "$device" --check dtypes --elements "$elements"
  step leak 120 start prdbench device --device "$device" --check leak --groups "$groups" --elements 1024
  if [ -n "$python" ]; then
    local quickly=()
    [ "$quick" = false ] || quickly=(--quick)
    step torch 240 torch_check --device "$device" "${quickly[@]}"
  fi
}

# The largest size alone: what is small is the latency of processes, not NCCL's.
judge() {
  local largest
  largest="$(lines '"bench":"reduce"' '"way":"collective"' | while IFS= read -r line; do field "$line" bytes; echo; done \
    | sort -n | tail -n 1)"
  timing_goal "weighted reduction" 0.98 \
    "$(lines '"bench":"reduce"' '"way":"collective"' "\"bytes\":$largest," | smallest ratio)"
  timing_goal "kernels" 0.9 "$(while IFS= read -r line; do
    [[ $line == *'"case":"staged'* ]] || printf '%s\n' "$line"
  done < <(lines '"bench":"device"') | smallest ratio)"
  local gpu=()
  [ "$stand_in" = true ] || gpu=(gpu-test)
  right_goal "correctness" "${gpu[@]}" groups dtypes
  right_goal "$groups groups without a leak" leak
  right_goal "kill -9 of a member" kill
  [ -z "$python" ] || right_goal "PyTorch" torch
  local training
  training="$(lines '"training":"p-reduce"')"
  figure_goal "training accuracy" "$accuracy" "$(field "$training" test_accuracy)"
  if [ "$stand_in" = true ]; then
    goal "training's groups over NCCL" 0.5 null null
  else
    figure_goal "training's groups over NCCL" 0.5 "$(field "$training" nccl_share)"
  fi
}

run() {
  parse "$@"
  package="" python=""
  [ "$stand_in" = true ] || find_driver
  find_programs
  [ "$stand_in" = true ] || find_torch
  work="$(mktemp -d)"
  # A step's process is a copy of this one until its program starts: a signal may come before that.
  main=$BASHPID
  trap '[ "$BASHPID" != "$main" ] || rm -rf "$work"' EXIT
  : >"$results"
  : >"$log"
  # Stopped: the step that runs ends, the others are not begun, and all that was found is there.
  running=""
  stopped=false
  trap '[ "$BASHPID" = "$main" ] || exit 143; stopped=true; [ -z "$running" ] || kill "$running" 2>/dev/null || true' INT TERM
  wrong=0
  missed=0
  SECONDS=0
  export CUDA_MODULE_LOADING="${CUDA_MODULE_LOADING:-EAGER}" # worker/device/README.md says why
  export NCCL_DEBUG="${NCCL_DEBUG:-WARN}" NCCL_DEBUG_FILE="${NCCL_DEBUG_FILE:-$work/nccl.%p}"
  if [ "$stand_in" = true ]; then
    module="$(first_of "$bin" libprd_standin_module.so)"
    [ -n "$module" ] || { echo "gpu-check: there is no libprd_standin_module.so: build the tests" >&2; exit 1; }
  else
    PRD_NCCL_LIBRARY="$(find_nccl)"
    [ -z "$PRD_NCCL_LIBRARY" ] || export PRD_NCCL_LIBRARY
  fi
  [ -z "$module" ] || export PRD_CUDA_MODULE="$module"
  write_functions
  run_steps
  judge
  say "{\"gpu_check\":\"done\",\"right\":$([ $wrong = 0 ] && echo true || echo false),\"goals_missed\":$([ $missed = 0 ] && echo false || echo true),\"stand_in\":$stand_in,\"seconds\":$SECONDS}"
  [ $wrong = 0 ] || exit 1
  [ $missed = 0 ] || exit 3
}
