"""The figures and the law of a run with faults, from the times of steps and faults. Pure; times in seconds."""
import bisect

NEVER = float("-inf")


def union(intervals):
    """The same time as intervals [start, end) that do not touch, by their start."""
    result = []
    for start, end in sorted(intervals):
        if start >= end:
            continue
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def without(window, intervals):
    """What is left of the window outside the intervals."""
    left, at = [], window[0]
    for start, end in union(intervals):
        start, end = max(start, window[0]), min(end, window[1])
        if start >= end:
            continue
        if start > at:
            left.append((at, start))
        at = end
    if window[1] > at:
        left.append((at, window[1]))
    return left


def total(intervals):
    return sum(end - start for start, end in intervals)


def count(steps, interval):
    """Of the sorted times `steps`, those in [start, end)."""
    return bisect.bisect_left(steps, interval[1]) - bisect.bisect_left(steps, interval[0])


def longest_gap(steps, live):
    """The longest stretch of live time without a step. live: intervals; a stretch does not reach from one to the next."""
    longest = 0.0
    for start, end in live:
        inside = steps[bisect.bisect_left(steps, start) : bisect.bisect_left(steps, end)]
        times = [start, *inside, end]
        longest = max(longest, *(b - a for a, b in zip(times, times[1:])))
    return longest


def pace(steps, intervals, rate):
    """Steps per second in the intervals of each worker, divided by `rate`, over all workers. None: no such time."""
    time_s = sum(total(union(parts)) for parts in intervals)
    made = sum(count(times, part) for times, parts in zip(steps, intervals) for part in union(parts))
    return made / (time_s * rate) if time_s > 0 and rate > 0 else None


def lost(steps, down, window, base_rate, edges):
    """The live time that gave no steps, in seconds of the whole job, by the kind of fault that began or ended last.

    edges: (time, kind) of every begin and end of a fault, sorted. "": before the first.
    """
    found = {}
    if not base_rate:
        return found
    parts = [(window[0], ""), *((min(max(time, window[0]), window[1]), kind) for time, kind in edges), (window[1], "")]
    for (start, kind), (end, _) in zip(parts, parts[1:]):
        live = [without((start, end), intervals) if end > start else [] for intervals in down]
        allowed_s = sum(map(total, live)) / len(steps)
        made = sum(count(times, part) for times, mine in zip(steps, live) for part in mine)
        found[kind] = found.get(kind, 0) + allowed_s - made / base_rate
    return found


def figures(steps, down, window, base_rate):
    """What a run gave in the window.

    steps: of each worker, its steps' times, sorted. down: of each, the intervals that do not count (its own faults', the
    daemon's). base_rate: steps per second of all workers without faults.
    """
    length = window[1] - window[0]
    live = [without(window, intervals) for intervals in down]
    share = sum(map(total, live)) / (len(steps) * length) if length > 0 and steps else 0
    counted = sum(count(times, interval) for times, parts in zip(steps, live) for interval in parts)
    allowed = base_rate * length * share
    return {
        "seconds": length,
        "steps": sum(count(times, window) for times in steps),
        "steps_live": counted,
        "steps_allowed": allowed,
        "live_share": share,
        "goodput": counted / allowed if allowed > 0 else None,
        "longest_gap_s": [longest_gap(times, parts) for times, parts in zip(steps, live)],
    }


class Watch:
    """The law no-hang, as time goes on: who should have made a step by now.

    A worker's patience begins at its last step, or when it need step again: a fault of its own is over, its process was
    started. A fault of others that begins or ends may cost it a lease more, and never more than the patience anew.
    """

    def __init__(self, workers, patience_s, lease_s):
        self._patience_s = patience_s
        self._lease_s = lease_s
        self._since = [NEVER] * workers  # when the patience began; NEVER: not to be watched
        self._due = [NEVER] * workers
        self._hung = set()

    def begin(self, now):
        for rank in range(len(self._since)):
            self.from_(rank, now)

    def from_(self, rank, when):
        """Its patience begins then."""
        self._since[rank] = max(self._since[rank], when)
        self._due[rank] = max(self._due[rank], when + self._patience_s)

    def step(self, rank, now):
        if self._since[rank] > NEVER:
            self._since[rank] = NEVER  # also before a moment set ahead
            self._due[rank] = NEVER
            self.from_(rank, now)
            self._hung.discard(rank)

    def edge(self, now):
        """A fault begins or ends."""
        self._due = [max(due, min(due + self._lease_s, now + self._patience_s)) for due in self._due]

    def hangs(self, now, excused):
        """The workers that hang since the last call, and for how long they have not stepped. excused: need not step."""
        found = []
        for rank, due in enumerate(self._due):
            if self._since[rank] == NEVER or rank in self._hung and rank not in excused:
                continue
            if rank in excused:
                self.from_(rank, now)
                self._hung.discard(rank)
            elif now > due:
                self._hung.add(rank)
                found.append((rank, now - self._since[rank]))
        return found
