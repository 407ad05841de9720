#!/usr/bin/env python3
"""The systemd unit, checked by systemd itself. Usage: unit_test.py UNIT BIN_DIR

systemd-analyze verify exits 0 for unknown keys and bad values, so anything on stderr is a failure.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

MAX_EXPOSURE = 15  # tenths; systemd calls 0 to 24 "OK"
SKIPPED = 77


def main():
    unit, bin_dir = (pathlib.Path(a) for a in sys.argv[1:])
    if shutil.which("systemd-analyze") is None:
        print("systemd-analyze is not installed")
        return SKIPPED
    text = unit.read_text(encoding="utf-8")
    failures = []
    for line in ("IPAddressDeny=any", "IPAddressAllow=localhost", "LimitCORE=0", "MemoryMax=", "MemoryHigh=", "TasksMax=",
                 "StartLimitBurst="):
        if f"\n{line}" not in text:
            failures.append(f"the unit lacks {line}")
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / unit.name
        copy.write_text(text.replace("/usr/bin/prd ", f"{bin_dir}/prd "), encoding="utf-8")
        for words in (["verify"], ["security", "--offline=true", f"--threshold={MAX_EXPOSURE}"]):
            run = subprocess.run(["systemd-analyze", *words, str(copy)], capture_output=True, text=True, timeout=100)
            if run.returncode != 0 or run.stderr:
                failures.append(f"systemd-analyze {words[0]}: {run.returncode}\n{run.stderr}{run.stdout[-2000:]}")
        # The check must be able to fail.
        copy.write_text(text.replace("/usr/bin/prd ", f"{bin_dir}/prd ") + "\nNoSuchKey=1\n", encoding="utf-8")
        bad = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=100)
        if "NoSuchKey" not in bad.stderr:
            failures.append("systemd-analyze verify does not notice an unknown key")
    print("\n".join(failures) or "the unit is fine")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
