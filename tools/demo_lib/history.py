"""What the daemon's history tells of a run, from the records that `prdctl export --format jsonl` writes. Pure."""
import json

ROUNDS = ("train", "round")  # the kinds of groups that are part of training; others begin or end it


def counts(lines):
    """Rounds (or groups) that were completed, their contributors, updates that were dropped, and conflicts.

    A conflict is a group that was drawn while another that overlaps it was not done. `scheduled`: the workers drew
    their groups themselves, and none of them is in the history.
    """
    contributors = {}  # by group
    completed = []
    dropped = 0
    conflicts = 0
    scheduled = False
    for line in lines:
        record = json.loads(line)
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
        "dropped_updates": dropped,
        "conflicts": conflicts,
        "scheduled": scheduled,
    }
