"""What the daemon's history tells of a run, from the records that `prdctl export --format jsonl` writes. Pure."""
import json

ROUNDS = ("train", "round")  # the kinds of groups that are part of training; others begin or end it


class Exchange:
    """Of runs without groups (hop, ssp): what was skipped, dropped or not sent, and how far ahead workers were let go.

    .ahead: of each answer, how many iterations (clocks) beyond the slowest worker that trains it let its worker go.
    Where parameters are in shards, a worker is as far as its updates are stored.
    """

    def __init__(self):
        self.iterations = {}  # by rank, of those who train
        self.stores = False
        self.skipped = self.dropped = self.suppressed = 0
        self.ahead = []

    def add(self, record):
        kind = record["type"]
        if kind == "ready":
            self.dropped += record.get("dropped", 0)
            self.suppressed += record.get("suppressed", 0)
            if self.stores:
                self.iterations[record["rank"]] = record["iteration"]
        elif kind == "placement_set":
            self.stores = True
        elif kind == "worker_joined":
            self.iterations[record["rank"]] = record["iteration"]
        elif kind == "worker_left":
            self.iterations.pop(record["rank"], None)
        elif kind == "query_answered" and record.get("next", 0) > 0:
            self.skipped += record["next"] - record["iteration"]
            self.iterations[record["rank"]] = record["next"]
            self.ahead.append(record["next"] - min(self.iterations.values()))

    def counts(self):
        return {
            "skipped_iterations": self.skipped,
            "suppressed_updates": self.suppressed,
            "mean_ahead": sum(self.ahead) / len(self.ahead) if self.ahead else None,
            "most_ahead": max(self.ahead, default=None),
        }


def counts(lines):
    """Rounds (or groups) that were completed, their contributors, updates that were dropped, and conflicts.

    A conflict is a group that was drawn while another that overlaps it was not done. `scheduled`: the workers drew
    their groups themselves, and none of them is in the history. And what Exchange.counts has.
    """
    contributors = {}  # by group
    completed = []
    dropped = 0
    conflicts = 0
    scheduled = False
    exchange = Exchange()
    for line in lines:
        record = json.loads(line)
        exchange.add(record)
        if record["type"] == "group_formed" and record["kind"] in ROUNDS:
            conflicts += record.get("conflict", False)
            contributors[record["group"]] = sum(member["weight"] > 0 for member in record["members"])
        elif record["type"] == "group_ended" and record["group"] in contributors:
            members = contributors.pop(record["group"])
            if record["ok"]:
                completed.append(members)
        elif record["type"] == "update_dropped":
            dropped += 1
        elif record["type"] == "schedule_set":
            scheduled = True
    return {
        "rounds": len(completed),
        "mean_contributors": sum(completed) / len(completed) if completed else None,
        "dropped_updates": dropped + exchange.dropped,
        "conflicts": conflicts,
        "scheduled": scheduled,
        **exchange.counts(),
    }
