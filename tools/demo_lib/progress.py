"""How far a run has come: one live line on a terminal, a line every ten seconds elsewhere."""
import sys
import time

EVERY_S = {True: 0.5, False: 10}  # on a terminal, elsewhere


def bar(share, width=24):
    filled = round(min(1, share) * width)
    return "#" * filled + "-" * (width - filled)


def line(engine, evaluations, measure, share_done, elapsed_s):
    """The state in words. evaluations: those so far, the newest last; share_done: of one, how much of the run is."""
    if not evaluations:
        return f"{engine:<12} starting, {elapsed_s:.0f} s"
    newest = evaluations[-1]
    share = share_done(newest)
    reading = "-" if newest[measure] is None else f"{newest[measure]:.3f}"
    text = f"{engine:<12} [{bar(share)}] {min(1, share):4.0%}  {measure} {reading}"
    # Over the last five seconds or so: what it does now.
    earlier = next((e for e in reversed(evaluations) if newest["time_s"] - e["time_s"] >= 5), evaluations[0])
    if newest["time_s"] > earlier["time_s"]:
        rate = (newest["updates"] - earlier["updates"]) / (newest["time_s"] - earlier["time_s"])
        text += f"  {rate:.1f} updates/s"
    text += f"  {newest['time_s']:.0f} s"
    if 0 < share < 1:
        text += f", {newest['time_s'] * (1 - share) / share:.0f} s left"
    return text


class Progress:
    def __init__(self, stream=sys.stdout):
        self._stream = stream
        self._live = stream.isatty()
        self._shown_at = float("-inf")

    def show(self, run, begun):
        now = time.monotonic()
        if now - self._shown_at < EVERY_S[self._live]:
            return
        self._shown_at = now
        settings = run.settings
        text = line(run.engine.text, run.evaluations, settings.measure, settings.share_done, now - begun)
        self._stream.write(f"\r\x1b[K{text}" if self._live else f"{text}\n")
        self._stream.flush()

    def note(self, text):
        """Something that happened, on a line of its own."""
        self._stream.write(f"\r\x1b[K{text}\n" if self._live else f"{text}\n")
        self._stream.flush()

    def done(self, run, begun):
        self._shown_at = float("-inf")
        self.show(run, begun)
        self._shown_at = float("-inf")
        if self._live:
            self._stream.write("\n")
            self._stream.flush()
