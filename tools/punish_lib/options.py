"""The command line. Pure but for the question which engines there are."""
import argparse
import pathlib
import re

import engines
import schedule
from arguments import folder, number

QUICK_KINDS = ("kill", "stop", "kill-daemon")
QUIET_S = 5  # with two leases: how soon every live worker must have stepped

LAWS = {
    "no-hang": "a live worker makes a step within two leases + 5 s of its last one, of the end of a fault of its own or of the "
    "daemon's, and of the start of its process. Every other fault that begins or ends meanwhile may cost a lease more. "
    "A cut link excuses nobody, for there are other links; but while it is cut workers may wait if prdctl workers says of "
    "one that it waits for a link",
    "no-death": "no worker ends but by a fault, before it is told to",
    "daemon-lives": "the daemon ends by a fault or SIGTERM only, and answers prdctl at the end",
    "one-run": "at the end one run of the job goes on, and every live worker is in it",
    "ends": "told to end, every worker ends with exit code 0",
    "same-model": "all that have called Finish have the same parameters (where a worker prints their \"sum\")",
    "replays": "prdctl replay takes the same decisions on every run of every state_dir that was in use",
    "linked": "a run that was switched has a next one, which goes on where it has ended",
    "no-leak": "no process is left",
}

EPILOG = """\
What happens, for each engine: punish starts a daemon on a temporary state_dir and the workers of one job, measures
their steps per second without faults (--baseline-seconds), then draws faults from a seed for --minutes. A fault comes
every --every seconds in the mean (exponential); the kinds come in turn, in an order that is drawn for each round of
all. At most half of the workers are under a fault at one time, and one fault at a time strikes the daemon. Then the
faults end; two leases + 5 s later the workers are told to end the job in order, and the histories are checked.

The kinds of faults:
%(kinds)s
cut and slow put each worker into a network namespace of its own, and disk-full puts the daemon's state_dir onto a
file system in memory: these three need root. What this machine cannot do is skipped, and one line says why. clock is
always skipped: one process alone cannot be given another wall clock; prdsim does that. With --quick faults are shorter.

The laws, all of which must hold:
%(laws)s

Goodput compares the steps made with the steps that the faults left time for:

    goodput = steps made in live time / (baseline steps per second x seconds x live share)
    live share = (sum over the workers of their live time) / (workers x seconds)

Steps are those of all workers, as lines of their output. A worker's time is not live
  - from its kill -9 until its process is started again (and --load-seconds longer), from SIGSTOP to SIGCONT, and for
    the two workers at the ends of a cut link while it is cut, in one direction too;
  - for all workers while the daemon is stopped, or its disk is full; and from its kill -9 until it is ready again.
All other time is live: what the survivors lose until a lease has run out, what a worker needs to be let in again, a
slow link. Steps made in time that is not live do not count. The longest gap is the longest live time without a step.
Groups have 2 members unless --engine says otherwise. With larger ones that do not divide the number of workers fewer
workers may be as quick, and the goodput above 1.
The live time without steps is also told by the fault that began or ended last: it shows which kind costs most.
The pace at a cut link is the steps per second of the two workers at its ends, from two leases after the cut until its
end, divided by their baseline: what the cut of one link leaves them.

Your own job: what follows -- is run as each worker, with PRD_CONTROLLER, PRD_JOB, RANK, LOCAL_RANK and WORLD_SIZE set,
and keys if there are namespaces. {rank} and {stop} in it are replaced: the rank, and a file that does not exist until
the worker is to end. A command without {stop} gets SIGTERM. It must train for as long as it is let, and print a line
per step (--step-line). A worker is killed and stopped together with its children.

    tools/punish --workers 4 --engine all-reduce --step-line loss --load-seconds 20 -- python3 train.py --stop-file {stop}

Examples:
  tools/punish --quick
  tools/punish --minutes 30 --engine p-reduce,all-reduce
  tools/punish --faults old-state,wipe --every 20 --seed 7
  tools/punish --faults cut --engine p-reduce:group_size=3,hop:backups=1 --workers 4

What it leaves in --out: events-ENGINE.jsonl, one JSON object per event, with the time in seconds since the first fault
could come; summary.json. If a law is broken, also where the logs and the state_dirs are.
Exit codes: 0 all laws hold, and the goodput is as high as --goal; 1 a law is broken, or punish could not do its work;
2 wrong usage; 3 all laws hold, and the goodput is lower than --goal; 130 interrupted.
"""


def listing(names):
    """An indented list of {name: text}, wrapped."""
    lines = []
    for name, text in names.items():
        line = f"  {name:<12}"
        for word in text.split():
            if len(line) + len(word) > 115:
                lines.append(line)
                line = " " * 14
            line += " " + word
        lines.append(line)
    return "\n".join(lines)


def kinds(text):
    names = list(schedule.ALL) if text == "all" else text.split(",")
    wrong = [name for name in names if name not in schedule.ALL]
    if wrong or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(
            f"found '{text}', allowed is all, or a list of different ones of {','.join(schedule.ALL)}"
        )
    return names


def rate(text):
    if not re.fullmatch(r"[1-9][0-9]{0,5}[kmg]bit", text):
        raise argparse.ArgumentTypeError(f"found '{text}', allowed is a whole number and kbit, mbit or gbit, as 20mbit")
    return text


def setting(text):
    key, equals, value = text.partition("=")
    if not equals or not key.replace("_", "").isalpha() or not value:
        raise argparse.ArgumentTypeError(f"found '{text}', allowed is KEY=VALUE, as in the config (prd --list-keys)")
    return key, value


def make_parser():
    about = {name: "{}; {:g} to {:g} s".format(kind.about, *kind.length_s) for name, kind in schedule.KINDS.items()}
    about["clock"] = schedule.KINDS["clock"].about + "; always skipped (below)"
    about["switch"] = schedule.KINDS["switch"].about
    texts = {"kinds": listing(about), "laws": listing(LAWS)}
    parser = argparse.ArgumentParser(
        prog="tools/punish", usage="tools/punish [options] [-- COMMAND ...]",
        description="Runs a job of real processes, breaks what can break, for a chosen time, and checks that nothing hangs "
        "and nothing is lost.",
        epilog=EPILOG % texts, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--quick", action="store_true", help=f"about 30 s, 4 workers, {', '.join(QUICK_KINDS)}, short faults, no --goal; needs no root")
    add("--minutes", type=number(float, 0.01, 100_000), help="of faults, for each engine (default: 5)")
    add("--engine", default="p-reduce", help="engines, one after another: NAME or NAME:KEY=VALUE,... (default: %(default)s)")
    add("--workers", type=number(int, 2, 256), help="worker processes (default: 8)")
    add("--faults", type=kinds, help="kinds of faults (below), or all (default: all)")
    add("--switch", metavar="ENGINES", help="switches from one of these engines to the next among the faults, too, as p-reduce,all-reduce")
    add("--every", type=number(float, 0.1, 100_000), help="mean seconds between two faults (default: 30)")
    add("--seed", type=number(int, 0, 2**63), help="the same seed gives the same faults (default: drawn, and printed)")
    add("--baseline-seconds", type=number(float, 1, 3600), help="of steps without faults, to compare with (default: 30)")
    add("--goal", type=number(float, 0, 10), help="the goodput to reach (default: 0.9)")
    add("--out", type=pathlib.Path, default=pathlib.Path("punish-out"), help="directory of the results (default: %(default)s)")
    add("--json", action="store_true", help="print one JSON object per engine; everything else goes to standard error")
    more = parser.add_argument_group("the job")
    add = more.add_argument
    add("--lease-ms", type=number(int, 100, 60_000), default=2000, help="lease_ms of the job (default: %(default)s)")
    add("--job", type=setting, action="append", default=[], metavar="KEY=VALUE", help="another key of [[job]], as in the config; may be repeated")
    add("--step-ms", type=number(float, 1, 60_000), default=50, help="how long a worker computes a step (default: %(default)s)")
    add("--floats", type=number(int, 1, 10**9), default=10_000, help="in the model (default: %(default)s)")
    add("--slow-rate", type=rate, default="20mbit", metavar="RATE", help="of a slow link, as tc writes it (default: %(default)s)")
    add("--load-seconds", type=number(float, 0, 3600), default=0, help="that a fresh COMMAND needs until it joins (default: %(default)s)")
    add("--step-line", default='"step"', metavar="TEXT", help="a line of a worker's output that holds TEXT is a step (default: %(default)s)")
    add("--bin", type=folder, required=True, help=argparse.SUPPRESS)
    return parser


DEFAULTS = {"minutes": 5, "workers": 8, "faults": schedule.ALL, "every": 30, "baseline_seconds": 30, "goal": 0.9}
QUICK = {"minutes": 0.15, "workers": 4, "faults": list(QUICK_KINDS), "every": 1.5, "baseline_seconds": 2, "goal": 0}


def parse(arguments, catalogue):
    """Options with all that follows from others filled in; .engines are engines.Engine. Ends the program on errors.

    `catalogue`: gives engines.catalogue() of the programs in a folder.
    """
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parser = make_parser()
    options = parser.parse_args(arguments[:at])
    options.command = arguments[at + 1 :]
    if at < len(arguments) and not options.command:
        parser.error("found nothing after --, allowed is -- COMMAND ...")
    for name, value in (QUICK if options.quick else DEFAULTS).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    known = catalogue(options.bin)

    def parsed(name, text):
        try:
            return engines.parse(text, known) if text else []
        except ValueError as error:
            return parser.error(f"{name}: {error}")

    options.engines = parsed("--engine", options.engine)
    options.switch = parsed("--switch", options.switch)
    if options.switch:
        options.faults = [*options.faults, "switch"]
    options.patience_s = 2 * options.lease_ms / 1000 + QUIET_S
    return options
