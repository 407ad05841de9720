# p-reduce trains the CNN with four workers on the one device, through a real prd daemon. Sourced by gpu-check.

# training FOLDER STEPS STEP_MS ACCURACY DEVICE: prints {"training":..}, and succeeds if all workers end well, the final
# model, the average of all workers', is that good on the test set, and, on a GPU, NCCL carried most groups of the second
# half of the steps: communicators are made while the first half goes on. A step lasts STEP_MS at least, so that it does.
training() {
  local dir="$1" steps="$2" step_ms="$3" needed="$4" device="$5" workers=4 rank pids=() daemon why=""
  mkdir -p "$dir"
  training_config "$dir" "$workers" >"$dir/prd.toml"
  # Who took too long is told to end: nothing stays on the device, and what was said by then is kept.
  trap 'kill -KILL "$daemon" "${pids[@]}" 2>/dev/null; cat "$dir"/*.log >&2; exit 1' TERM
  start prd --config "$dir/prd.toml" >"$dir/prd.log" 2>&1 &
  daemon=$!
  export PRD_CONTROLLER="ipc://$dir/prd.sock" PRD_JOB=gpu-check PRD_REDUCE_TIMEOUT_MS=20000
  for ((rank = 0; rank < workers; ++rank)); do
    # Ranks that share a GPU are on different hosts, for NCCL (tools/prdbench/worker_memory.cc).
    PRD_RANK=$rank NCCL_HOSTID="gpu-check-$$-$rank" NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_P2P_DISABLE=1 \
      NCCL_SHM_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_MULTI_RANK_GPU_ENABLE=1 \
      start prd-train-cuda --device "$device" --data "$data" --steps "$steps" --seconds 60 --step-ms "$step_ms" \
      --batch 64 --lr 0.05 --momentum 0.5 --evaluate --log "$dir/steps.$rank" \
      >"$dir/worker.$rank" 2>"$dir/worker.$rank.log" &
    pids+=($!)
  done
  for ((rank = 0; rank < workers; ++rank)); do
    local code=0
    wait "${pids[rank]}" || code=$?
    [ "$code" -eq 0 ] || complain "worker $rank ended with $code: $(tail -n 1 "$dir/worker.$rank.log")"
  done
  kill "$daemon" 2>/dev/null || true
  wait "$daemon" || complain "prd ended with $?: $(tail -n 1 "$dir/prd.log")"
  trap - TERM
  cat "$dir"/*.log >&2
  judge_training
  [ -z "$why" ]
}

# The lease is one that holds however long a driver takes its time in one of several processes.
training_config() {
  cat <<TOML
[daemon]
listen = "ipc://$1/prd.sock"
admin = "ipc://$1/admin.sock"
state_dir = "$1/state"

[[job]]
name = "gpu-check"
engine = "p-reduce"
workers = $2
lease_ms = 20000

[job.p-reduce]
group_size = 2
weights = "dynamic"
TOML
}

complain() { why="${why:+$why; }$1"; }

# gone WAY LINE: how many groups had gone that way; 0 if the line is not there.
gone() {
  local count
  count="$(field "$2" "$1")"
  printf '%d' "${count:-0}"
}

# What came of training(), whose variables it uses.
judge_training() {
  local rank log last half lines made="$steps" way share=null accuracy extra=""
  local -A all=([collective]=0 [exchange]=0 [staged]=0) first=([collective]=0 [exchange]=0 [staged]=0)
  for ((rank = 0; rank < workers; ++rank)); do
    log="$dir/steps.$rank"
    [ -f "$log" ] || continue
    lines="$(wc -l <"$log")"
    half="$(sed -n "$(((lines + 1) / 2))p" "$log")"
    last="$(tail -n 1 "$log")"
    # The first line says who it is, the last one that it is done.
    [ $((lines - 2)) -ge "$made" ] || made=$((lines > 2 ? lines - 2 : 0))
    for way in collective exchange staged; do
      all[$way]=$((all[$way] + $(gone "$way" "$last")))
      first[$way]=$((first[$way] + $(gone "$way" "$half")))
    done
  done
  local nccl=$((all[collective] + all[exchange] - first[collective] - first[exchange]))
  local staged=$((all[staged] - first[staged]))
  if [ "$device" = cpu ]; then
    extra=',"trained_on":"the processor: neither CUDA nor NCCL has a part in it"'
  else
    local thousandths=$((nccl + staged > 0 ? 1000 * nccl / (nccl + staged) : 0))
    share="$((thousandths / 1000)).$(printf '%03d' $((thousandths % 1000)))"
    [ "$nccl" -gt "$staged" ] || complain "NCCL carried $nccl of $((nccl + staged)) groups in the second half of the steps"
  fi
  accuracy="$(field "$(cat "$dir/worker.0")" test_accuracy)"
  if [ -z "$accuracy" ]; then
    complain "worker 0 told no accuracy"
  elif ! reaches "$accuracy" "$needed"; then
    complain "the accuracy is $accuracy, needed is $needed"
  fi
  [ -z "$why" ] || extra+=",\"why\":$(quote "$why")"
  printf '{"training":"p-reduce","ok":%s,"model":"cnn","workers":%d,"group_size":2,"steps":%d,"device":"%s","stand_in":%s,' \
    "$([ -z "$why" ] && echo true || echo false)" "$workers" "$made" "$device" "$stand_in"
  printf '"test_accuracy":%s,"needed":%s,"groups":{"collective":%d,"exchange":%d,"staged":%d},"nccl_share":%s%s}\n' \
    "${accuracy:-null}" "$needed" "${all[collective]}" "${all[exchange]}" "${all[staged]}" "$share" "$extra"
}
