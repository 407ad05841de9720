"""What is counted in the records of a run (`prdctl export --format jsonl`) and in the workers' step logs. Pure."""
import collections

ROUNDS = ("train", "round")  # the kinds of groups that are part of training


def members(records, since_ns=0):
    """Of the groups that trained and formed after that, in order: the ranks."""
    return [
        [member["rank"] for member in record["members"]]
        for record in records
        if record["type"] == "group_formed" and record["kind"] in ROUNDS and record["now_ns"] > since_ns
    ]


def longest_absence(groups, rank):
    """How many groups in a row are without it at most."""
    absent = most = 0
    for ranks in groups:
        absent = 0 if rank in ranks else absent + 1
        most = max(most, absent)
    return most


def first(records, kind, rank):
    """When such a record of the rank was first written."""
    return next(r["now_ns"] for r in records if r["type"] == kind and r["rank"] == rank)


def after(records, steps, rank):
    """What the others did once that worker had left or called Finish. steps: of all workers, by rank."""
    left_ns = first(records, "worker_left", rank)
    rounds = members(records, left_ns)
    others = [step for other, of in steps.items() if other != rank for step in of]
    later = [step for step in others if step["end_ns"] > left_ns]
    return {
        "steps_after": len(later),
        "rounds_after": len(rounds),
        "rounds_after_with_it": sum(rank in ranks for ranks in rounds),
        "longest_wait_after_ms": round(max((step["wait_ns"] for step in later), default=0) / 1e6),
    }


def digests(records):
    """By group: what members told of their replicas after its result."""
    told = collections.defaultdict(list)
    for record in records:
        if record["type"] == "finished" and record.get("digest"):
            told[record["group"]].append(record["digest"])
    return told
