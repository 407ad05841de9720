# p-reduce trains the CNN with four workers on the one device, through a real prd daemon. Sourced by gpu-check.

# training FOLDER STEPS ACCURACY DEVICE: prints {"training":..} and succeeds if the final model, the average of all
# workers', is that good on the test set.
training() {
  local dir="$1" steps="$2" needed="$3" device="$4" workers=4 rank pids=()
  mkdir -p "$dir"
  cat >"$dir/prd.toml" <<TOML
[daemon]
listen = "ipc://$dir/prd.sock"
admin = "ipc://$dir/admin.sock"
state_dir = "$dir/state"

[[job]]
name = "gpu-check"
engine = "p-reduce"
workers = $workers

[job.p-reduce]
group_size = 2
weights = "dynamic"
TOML
  start prd --config "$dir/prd.toml" >"$dir/prd.log" 2>&1 &
  local daemon=$!
  export PRD_CONTROLLER="ipc://$dir/prd.sock" PRD_JOB=gpu-check
  for ((rank = 0; rank < workers; ++rank)); do
    # Ranks that share a GPU are on different hosts, for NCCL (tools/prdbench/worker_memory.cc).
    PRD_RANK=$rank NCCL_HOSTID="gpu-check-$$-$rank" NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_P2P_DISABLE=1 \
      NCCL_SHM_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_MULTI_RANK_GPU_ENABLE=1 \
      start prd-train-cuda --device "$device" --data "$data" --steps "$steps" --batch 64 --lr 0.05 --momentum 0.5 \
      --evaluate --log "$dir/steps.$rank" >"$dir/worker.$rank" 2>"$dir/worker.$rank.log" &
    pids+=($!)
  done
  local ok=true pid
  for pid in "${pids[@]}"; do wait "$pid" || ok=false; done
  kill "$daemon" 2>/dev/null || true
  wait "$daemon" || ok=false
  cat "$dir"/*.log >&2
  local line accuracy
  line="$(cat "$dir"/worker.0)"
  accuracy="$(field "$line" test_accuracy)"
  if [ -z "$accuracy" ] || [ "$(thousandths "$accuracy")" -lt "$(thousandths "$needed")" ]; then ok=false; fi
  printf '{"training":"p-reduce","ok":%s,"model":"cnn","workers":%d,"group_size":2,"steps":%d,"device":"%s","stand_in":%s,"test_accuracy":%s,"needed":%s}\n' \
    "$ok" "$workers" "$steps" "$device" "$stand_in" "${accuracy:-null}" "$needed"
  [ "$ok" = true ]
}
