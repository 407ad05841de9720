"""A daemon of one's own: when it is ready, and keys for it."""
import pathlib
import select
import socket
import subprocess
import time

from processes import ToolError, tail


class ReadySocket:
    """Where a daemon says, as to systemd, that it is ready. Use in a with statement, or close it."""

    def __init__(self, folder):
        self._path = pathlib.Path(folder) / "notify.sock"
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._path))
        self.environment = {"NOTIFY_SOCKET": str(self._path)}  # the daemon's

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._socket.close()

    def heard(self, wait_s=0):
        """Whether it says so within `wait_s`."""
        return bool(select.select([self._socket], [], [], wait_s)[0]) and b"READY=1" in self._socket.recv(4096)

    def wait(self, poll, log, limit_s):
        """Waits until it says so. `poll` gives None while the daemon runs. Raises ToolError."""
        deadline = time.monotonic() + limit_s
        while not self.heard(0.1):
            if poll() is not None:
                raise ToolError(f"prd ended with {poll()}; its log ends so:\n{tail(log)}")
            if time.monotonic() > deadline:
                raise ToolError(f"prd was not ready within {limit_s} s; its log ends so:\n{tail(log)}")


def make_keys(bin_dir, folder):
    """Makes CURVE keys in `folder`. Gives the lines of [daemon] and the environment of its workers."""
    folder = pathlib.Path(folder)
    for name in ("daemon", "worker"):
        subprocess.run([f"{bin_dir}/prdctl", "keygen", folder / name], check=True, capture_output=True)

    lines = (
        f'\ncurve_secret_key_file = "{folder}/daemon.key"\n'
        f'curve_authorized_keys_file = "{folder}/worker.pub"\n'
    )
    environment = {
        "PRD_CURVE_SERVER_KEY": (folder / "daemon.pub").read_text().strip(),
        "PRD_CURVE_SECRET_KEY_FILE": str(folder / "worker.key"),
    }
    return lines, environment
