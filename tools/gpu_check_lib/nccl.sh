# Where the driver and NCCL are on this machine. Sourced by gpu-check.

# Some containers and machines have the driver in a mount that neither PATH nor the loader knows.
find_driver() {
  local driver="${PRD_DRIVER:-/usr/local/nvidia}"
  [ -d "$driver" ] || return 0
  export PATH="$PATH:$driver/bin"
  local known
  known="$("$(command -v ldconfig || echo /sbin/ldconfig)" -p 2>/dev/null || true)"
  if [[ $known != *libcuda.so.1* ]]; then
    export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$driver/lib64:$driver/lib"
  fi
}

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
  local packages=nvidia/nccl/lib/libnccl.so.2
  candidates+=({/opt/*,/opt/*/*,/opt/*/.venv}/lib/python3*/site-packages/$packages
    "${HOME:-/root}"/{,.}*/lib/python3*/site-packages/$packages
    /usr/local/lib/python3*/*-packages/$packages)
  local some=""
  for line in "${candidates[@]}"; do
    [ -r "$line" ] || continue
    if new_enough "$line"; then
      echo "$line"
      return
    fi
    some="${some:-$line}"
  done
  echo "$some" # what is wrong with it, the programs say
}

# new_enough FILE: whether it is NCCL 2.28 or newer, as worker/cuda/nccl_library.h wants it.
new_enough() {
  local version
  version="$(LC_ALL=C grep -a -o -m 1 'NCCL version 2\.[0-9]*' "$1" 2>/dev/null | head -n 1)" || true
  [ "${version##*.}" -ge 28 ] 2>/dev/null
}
