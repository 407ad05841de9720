# gpu-check pack: what a machine with a GPU needs, in one file. Sourced by gpu-check.

programs=(prdbench prd prdctl prd-gpu-test prd-train-cuda)
module=libprd_cuda.so

# needed_by FILE..: the shared libraries that these are started with, but for glibc's own, each once.
needed_by() {
  ldd "$@" | while read -r name arrow path _; do
    [ "$arrow" = "=>" ] && [ -f "$path" ] || continue
    case "$name" in
      libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.* | libutil.so.*) ;;
      *) echo "$path" ;;
    esac
  done | sort -u
}

# The newest glibc that any of these asks for, as 2.36.
glibc_of() {
  objdump -T "$@" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -n 1 | cut -d_ -f2
}

# copy TO FILE..: without debug information, links followed.
copy() {
  local to="$1" file
  shift
  for file in "$@"; do
    cp -L "$file" "$to/"
    case "$(basename "$file")" in
      libc.so.* | ld-linux*) ;;
      *) chmod u+w "$to/$(basename "$file")"; strip --strip-unneeded "$to/$(basename "$file")" ;;
    esac
  done
}

# collect DIR: the pack, as a folder.
collect() {
  local dir="$1" program missing=()
  for program in "${programs[@]}"; do [ -x "$bin/$program" ] || missing+=("$program"); done
  [ -f "$bin/$module" ] || missing+=("$module")
  if [ ${#missing[@]} -ne 0 ]; then
    echo "gpu-check: $bin has no ${missing[*]}; build all of a release where a CUDA toolkit is:" >&2
    echo "  cmake --preset release && cmake --build --preset release" >&2
    return 1
  fi
  mkdir -p "$dir"/{bin,lib,glibc,data}
  for program in "${programs[@]}"; do copy "$dir/bin" "$bin/$program"; done
  copy "$dir/lib" "$bin/$module"
  # So that the pack can be tried where there is no GPU.
  if [ -f "$bin/libprd_standin_module.so" ]; then copy "$dir/bin" "$bin/libprd_standin_module.so"; fi
  local libraries=() path
  mapfile -t libraries < <(needed_by "$dir"/bin/* "$dir/lib/$module")
  copy "$dir/lib" "${libraries[@]}"
  # For a machine whose glibc is older: the loader, and what it loads besides.
  local loader
  loader="$(ldd "$dir/bin/prdbench" | grep -o '/[^ ]*ld-linux[^ ]*')"
  copy "$dir/glibc" "$loader"
  for path in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libresolv.so.2; do
    path="$(dirname "$(readlink -f "$loader")")/$path"
    [ ! -f "$path" ] || copy "$dir/glibc" "$path"
  done
  if [ -n "$wheel" ]; then /usr/bin/python3 -m zipfile -e "$wheel" "$dir/python" && chmod +x "$dir"/python/prd/.bin/*; fi
  cp "$data"/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz "$dir/data/"
  cp -r "$here/gpu-check" "$lib" "$dir/"
  printf '{"glibc":"%s","commit":"%s","built":"%s"}\n' "$(glibc_of "$dir"/bin/* "$dir"/lib/*)" \
    "$(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)" "$(date -u +%Y-%m-%dT%H:%MZ)" >"$dir/PACK"
}

pack() {
  local out=gpu-check.tar.gz limit=64 bytes wheel=""
  while [ $# -gt 0 ]; do
    case "$1" in
      --out) [ $# -gt 1 ] || refuse "--out needs a file"; out="$2"; shift 2 ;;
      --limit-mib) [[ ${2:-} =~ ^[0-9]+$ ]] || refuse "--limit-mib: found '${2:-}', needed is a number"; limit="$2"; shift 2 ;;
      --wheel) [ -f "${2:-}" ] || refuse "--wheel: found '${2:-}', needed is a file that tools/package --wheel makes"; wheel="$2"; shift 2 ;;
      -h | --help) help; exit 0 ;;
      *) refuse "found '$1', allowed are --out, --limit-mib and --wheel" ;;
    esac
  done
  case "$out" in
    *.tar.gz) compress=(gzip) ;;
    *.tar.xz) compress=(xz -9 -c) ;; # its dictionary holds what the wheel has again
    *.tar.zst) compress=(zstd -q -19 -T0 -c) ;;
    *) refuse "--out: found '$out', allowed are FILE.tar.gz, FILE.tar.xz and FILE.tar.zst" ;;
  esac
  bin="${PRD_BIN:-$here/../build/release/bin}"
  data="${PRD_DATA:-/usr/share/datasets/fashion-mnist}"
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  collect "$work/gpu-check"
  tar -C "$work" --owner=0 --group=0 -cf - gpu-check | "${compress[@]}" >"$work/packed"
  bytes="$(stat -c %s "$work/packed")"
  if [ "$bytes" -ge $((limit << 20)) ]; then
    echo "gpu-check: $bytes bytes are $((bytes - (limit << 20) + 1)) more than fewer than $limit MiB; the largest parts:" >&2
    du -a --apparent-size "$work/gpu-check" | sort -rn | sed -n '2,9s|'"$work/gpu-check/"'||p' >&2
    exit 1
  fi
  mv "$work/packed" "$out"
  chmod 644 "$out"
  echo "$out: $bytes bytes"
}
