"""The page of `prdctl serve` beside the runs: live, at an address that is printed."""
import json
import select

from processes import ToolError

WAIT_S = 30


class Page:
    """`children` end it. The runs go on without one that cannot be served."""

    def __init__(self, settings, children):
        self._settings = settings
        self._children = children
        self._shown = False

    def show(self):
        """Prints where it is, the first time. REQUIRES: the daemon of a run is ready; those of later runs have its socket."""
        if self._shown:
            return
        self._shown = True
        try:
            print(f"live in a browser of this host: {self._serve()}", flush=True)
        except (ToolError, ValueError, KeyError) as error:
            print(f"no page for a browser: {error}", flush=True)

    def _serve(self):
        command = [self._settings.bin / "prdctl", "--admin", f"ipc://{self._settings.dir}/admin.sock", "--json", "serve",
                   "--listen", "127.0.0.1:0"]  # fmt: skip
        served = self._children.start("prdctl serve", command, self._settings.dir / "page.log", piped=True)
        told = select.select([served.process.stdout], [], [], WAIT_S)[0]
        line = served.process.stdout.readline() if told else b""
        if not line:
            raise ToolError(f"prdctl serve says no address; its log is {served.log}")
        return json.loads(line)["url"]
