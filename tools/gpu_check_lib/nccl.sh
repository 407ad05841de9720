# Where NCCL is on this machine. Sourced by gpu-check.

# Prints its path; nothing if there is none.
find_nccl() {
  if [ -n "${PRD_NCCL_LIBRARY:-}" ]; then
    echo "$PRD_NCCL_LIBRARY"
    return
  fi
  local candidates=() line
  local ldconfig
  ldconfig="$(command -v ldconfig || echo /sbin/ldconfig)"
  while IFS= read -r line; do
    [[ $line == *libnccl.so.2*'=> '* ]] && candidates+=("${line##*=> }")
  done < <("$ldconfig" -p 2>/dev/null || true)
  candidates+=("${CUDA_HOME:-/usr/local/cuda}"/lib64/libnccl.so.2 /usr/lib/x86_64-linux-gnu/libnccl.so.2)
  local python
  for python in python3 python; do
    command -v "$python" >/dev/null || continue
    while IFS= read -r line; do candidates+=("$line"); done < <("$python" - 2>/dev/null <<'PYTHON' || true
import os, site, sys
for folder in [*site.getsitepackages(), site.getusersitepackages(), *sys.path]:
    for part in ("nvidia/nccl/lib", "torch/lib"):
        print(os.path.join(folder, part, "libnccl.so.2"))
PYTHON
    )
  done
  candidates+=(/opt/*/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2
    "$HOME"/.local/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2
    /usr/local/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2)
  for line in "${candidates[@]}"; do
    if [ -r "$line" ]; then
      echo "$line"
      return
    fi
  done
}
