"""What the daemon's history tells of a run, from the records that `prdctl export --format jsonl` writes. Pure."""
import json

ROUNDS = ("train", "round")  # the kinds of groups that are part of training; others begin or end it


def counts(lines):
    """Rounds (or groups) that were completed, their contributors, and updates that were dropped."""
    contributors = {}  # by group
    completed = []
    dropped = 0
    for line in lines:
        record = json.loads(line)
        if record["type"] == "group_formed" and record["kind"] in ROUNDS:
            contributors[record["group"]] = sum(member["weight"] > 0 for member in record["members"])
        elif record["type"] == "group_ended" and record["group"] in contributors:
            members = contributors.pop(record["group"])
            if record["ok"]:
                completed.append(members)
        elif record["type"] == "update_dropped":
            dropped += 1
    return {
        "rounds": len(completed),
        "mean_contributors": sum(completed) / len(completed) if completed else None,
        "dropped_updates": dropped,
    }
