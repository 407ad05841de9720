"""Which faults come when. Pure: a seed gives one schedule."""
import dataclasses
import math
import random

REST_S = 3  # between two faults of one worker, or of the daemon
DAEMON = -1  # in the place of a rank


@dataclasses.dataclass(frozen=True)
class Kind:
    name: str
    victims: int  # workers that it strikes; 0: the daemon
    length_s: tuple  # least, most
    quick_s: tuple  # of --quick
    stops_victims: bool  # while it lasts its victims' time does not count
    about: str


KINDS = {
    kind.name: kind
    for kind in (
        Kind("kill", 1, (1, 30), (0.3, 1.5), True, "kill -9 of a worker, which is started again when the fault ends"),
        Kind("stop", 1, (1, 30), (0.5, 3), True, "SIGSTOP of a worker, then SIGCONT"),
        Kind("stop-daemon", 0, (1, 30), (0.5, 3), True, "SIGSTOP of the daemon, then SIGCONT"),
        Kind("kill-daemon", 0, (0.2, 5), (0.2, 1), True, "kill -9 of the daemon, which is started again"),
        Kind("old-state", 0, (0.2, 3), (0.2, 1), True, "kill -9 of the daemon; it starts again with a copy of its "
             "state_dir that was made 1 to 10 s before"),
        Kind("wipe", 0, (0.2, 3), (0.2, 1), True, "kill -9 of the daemon; it starts again with an empty state_dir"),
        Kind("cut", 2, (2, 20), (1, 4), True, "the link between two workers' hosts is cut, one time in three only in "
             "one direction"),
        Kind("slow", 1, (5, 20), (2, 4), False, "the link of one worker's host carries only --slow-rate"),
        Kind("disk-full", 0, (2, 10), (1, 3), True, "no byte is free on the disk of state_dir"),
        Kind("clock", 0, (0, 0), (0, 0), False, "a step of the wall clock"),
        Kind("switch", 0, (1, 2), (0.5, 1), False, "prdctl switch to the next engine of --switch, by which alone this "
             "fault is asked for"),
    )
}  # fmt: skip
ALL = [name for name in KINDS if name != "switch"]


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str
    start: float  # seconds since the first could come
    end: float
    ranks: tuple = ()  # struck; none: the daemon
    age: float = 0  # old-state: of the copy, seconds
    one_way: bool = False  # cut: only from the first rank to the second

    @property
    def strikes_daemon(self):
        return not self.ranks

    @property
    def stops_victims(self):
        return KINDS[self.kind].stops_victims


class Draws:
    """Numbers from a seed. Only Random.random is the same in every version of Python."""

    def __init__(self, seed):
        self._random = random.Random(f"punish {seed}")

    def between(self, low, high):
        return low + (high - low) * self._random.random()

    def index(self, count):
        return min(count - 1, int(count * self._random.random()))

    def pick(self, values, count):
        """`count` different ones, in an order that is drawn."""
        values, picked = list(values), []
        for _ in range(count):
            picked.append(values.pop(self.index(len(values))))
        return picked

    def exponential(self, mean):
        return -mean * math.log(1 - self._random.random())


def most_at_once(workers):
    """Workers that are under a fault at one time, at most."""
    return max(1, workers // 2)


def free_at(busy, ranks, at, count, workers):
    """When `count` of `ranks` are free, at `at` or later, with no more than most_at_once under a fault."""
    need = min(len(ranks), len(ranks) - most_at_once(workers) + count)
    return max(at, sorted(busy[rank] for rank in ranks)[need - 1])


def draw(seed, kinds, workers, seconds, every, quick=False):
    """The faults of one run, by their start. `kinds`: names; each comes once in every round of all of them."""
    draws = Draws(seed)
    busy = {who: 0.0 for who in range(DAEMON, workers)}
    faults, left, at = [], [], 0.0
    while kinds:
        at += draws.exponential(every)
        left = left or draws.pick(kinds, len(kinds))
        kind = KINDS[left.pop()]
        length = draws.between(*(kind.quick_s if quick else kind.length_s))
        age, one_way = draws.between(1, 10), draws.between(0, 3) < 1
        struck = range(workers) if kind.victims else [DAEMON]
        start = free_at(busy, struck, at, kind.victims, workers) if kind.victims else max(at, busy[DAEMON])
        if start >= seconds:
            return sorted(faults, key=lambda fault: fault.start)
        ranks = draws.pick([who for who in struck if busy[who] <= start], kind.victims or 1)
        end = min(start + length, seconds)
        for who in ranks:
            busy[who] = end + REST_S
        faults.append(
            Fault(kind.name, start, end, tuple(ranks) if kind.victims else (),
                  min(age, start) if kind.name == "old-state" else 0, one_way and kind.name == "cut")
        )  # fmt: skip
    return faults
