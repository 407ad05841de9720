"""The demo's command line: options, and the settings that give several of them at once."""
import argparse
import pathlib
import re

import engines
from arguments import folder, number

EPILOG = """\
What happens: the demo starts prd on a temporary state directory, with a config that names the first engine. The
workers (worker/examples) train on Fashion-MNIST; one of them is five times slower than the others. Then the demo
changes the config's line `engine`, and nothing else, and trains again. A process of the lowest priority evaluates
snapshots of the model during the training. Every run ends after the same number of examples (--epochs), so that
final accuracies can be compared and times differ; or after the same time (--seconds). The target counts as reached
at the first of three evaluations in a row (one every half second) that reach it.

An engine may have options, the keys of its config table: --engines p-reduce:group_size=5,weights=constant,all-reduce
(prd --list-keys names all keys.) batch=N is the job's: N samples of each step of all workers together, which prd
divides by the workers' speeds. A step then lasts as long as its samples, --step-ms for --batch of them.

Settings are experiments from the papers. An option on the command line replaces the setting's:
  --setting esync        ESync, section 5: six workers, two of them 100 times slower; batch 64, 100 s each
  --setting hyperplane   eager-SGD (PPoPP 2020), 6.2.1: 8,192-dimensional regression, 8 workers, 48 epochs; in every
                         step one worker, drawn at random, is delayed by two thirds of a step (there 400 ms)
  --setting hop-random   Hop (ASPLOS 2019), 7.3.1 to 7.3.4: 16 workers, each step six times slower with probability
                         1/16; on the ring-based graph: plain, with a backup worker, with staleness 5; and ssp
  --setting hop-slow     Hop, 7.3.5: one worker of 16 is always four times slower; skipping up to 10 iterations, and not
  --setting shifted-cnn  eager-SGD, 6.2.3, at half its delays, with a small CNN: 8 workers, batch 64; all are delayed,
                         by 25 to 200 ms, shifted by one worker after each step

What it leaves in --out:
  summary.json        the figures of the table, and more
  accuracy.svg        test accuracy of the averaged model over time (hyperplane: loss.svg)
  trace-ENGINE.json   who computed, waited and reduced when: open it at https://ui.perfetto.dev
  evaluations-ENGINE.jsonl, prd-ENGINE.toml

Examples:
  tools/demo                             all-reduce, then p-reduce
  tools/demo --quick                     the same with shorter steps
  tools/demo --quick --torch             the same from a PyTorch script
  tools/demo --quick --keys              the same with keys, encrypted
  tools/demo --workers 6 --slow 4:2 --slow 5:8 --engines p-reduce
  tools/demo --target 0.8 --epochs 3
  tools/demo --quick --kill prd:5 --kill 2:8
  tools/demo --setting esync --shards labels --engines all-reduce,p-reduce
  tools/demo --quick --engines hop,hop:backups=1,hop:backups=1,max_jump=10,ssp:staleness=3
  tools/demo --quick --inject random:6:0.125 --engines all-reduce,hop:backups=1,ssp:staleness=3
  tools/demo --quick --engines all-reduce,all-reduce:batch=2048
  tools/demo --quick --engines p-reduce,p-reduce:overlap=true,prague:workers_per_host=4,ad-psgd
"""

SETTINGS = {
    "esync": {
        "engines": "all-reduce,esync", "workers": 6, "slow": [(4, 100.0), (5, 100.0)], "step_ms": 5, "batch": 64,
        "lr": 0.1, "lr_decay": 0, "target": 0.8, "seconds": 100,
    },
    "hyperplane": {
        "engines": "all-reduce,eager:quorum=solo", "model": "hyperplane", "workers": 8, "slow": [], "step_ms": 120,
        "inject": "one:80", "batch": 256, "lr": 0.02, "lr_decay": 0, "target": 5.0, "epochs": 48,
    },
    "hop-random": {
        "engines": "hop,hop:backups=1,hop:staleness=5,ssp:staleness=3", "workers": 16, "slow": [],
        "inject": "random:6", "seconds": 60,
    },
    "hop-slow": {
        "engines": "hop:backups=1,hop:backups=1,max_jump=2,hop:backups=1,max_jump=10", "workers": 16,
        "slow": [(15, 4.0)], "seconds": 60,
    },
    "shifted-cnn": {
        "engines": "all-reduce,eager:quorum=solo,eager:quorum=majority", "model": "cnn", "workers": 8, "slow": [],
        "step_ms": 50, "inject": "shifted:25:200", "batch": 64, "lr": 0.1, "lr_decay": 0, "target": 0.8, "epochs": 4,
    },
}  # fmt: skip

INJECT = re.compile(
    r"one:(?P<one>[0-9.]+)|shifted:(?P<low>[0-9.]+):(?P<high>[0-9.]+)|random:(?P<factor>[0-9.]+)(:(?P<p>[0-9.]+))?"
)


def slow_worker(text):
    rank, _, factor = text.partition(":")
    try:
        value = (int(rank), float(factor))
    except ValueError:
        value = (-1, 0)
    if value[0] < 0 or not 1 <= value[1] <= 1000:
        raise argparse.ArgumentTypeError(f"found '{text}', allowed is RANK:FACTOR with FACTOR 1 to 1000")
    return value


def longest_delay_ms(text, step_ms=0):
    """Of "one:MS", "shifted:MIN:MAX", or "random:FACTOR:P" on steps of step_ms. Raises ValueError."""
    match = INJECT.fullmatch(text)
    if not match:
        raise ValueError(text)
    if match["factor"]:
        if not 1 <= float(match["factor"]) <= 1000 or not 0 < float(match["p"] or 1) <= 1:
            raise ValueError(text)
        return (float(match["factor"]) - 1) * step_ms
    low, high = float(match["low"] or 0), float(match["one"] or match["high"])
    if not low <= high <= 60_000:
        raise ValueError(text)
    return high


def injection(text):
    try:
        longest_delay_ms(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"found '{text}', allowed is one:MS or shifted:MIN:MAX with MIN <= MAX <= 60000, or random:FACTOR:P with "
            "FACTOR 1 to 1000 and P up to 1"
        ) from None
    return text


def kill(text):
    who, _, seconds = text.partition(":")
    try:
        value = (who if who == "prd" else int(who), float(seconds))
    except ValueError:
        value = (-1, 0)
    if value[0] != "prd" and value[0] < 0 or not 0 <= value[1] <= 86400:
        raise argparse.ArgumentTypeError(f"found '{text}', allowed is prd:SECONDS or RANK:SECONDS")
    return value


def make_parser():
    parser = argparse.ArgumentParser(
        prog="tools/demo", description="Trains with unequal workers under several consistency engines, and compares.",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--quick", action="store_true", help="shorter steps: under 3 minutes once built; rates are less exact")
    add("--setting", choices=list(SETTINGS), help="a paper's experiment (below)")
    add("--engines", default="all-reduce,p-reduce", help="engines to run, in this order (default: %(default)s)")
    add("--workers", type=number(int, 2, 64), default=8, help="worker processes (default: %(default)s)")
    add("--slow", type=slow_worker, action="append", metavar="RANK:FACTOR",
        help="steps of the worker of this rank last FACTOR times as long; may be repeated (default: the last rank, "
        "5 times; none with --inject)")
    add("--inject", type=injection, metavar="PATTERN",
        help="delays added to steps. one:MS: in every step one worker, drawn at random, by MS. shifted:MIN:MAX: all "
        "workers, by MIN to MAX ms, shifted by one worker after each step. random:FACTOR:P: each step of each worker "
        "lasts FACTOR times as long with probability P (default P: one over the workers)")
    add("--group-size", type=number(int, 2, 64), default=3, help="workers per group, of engines that have groups of one size (default: %(default)s)")
    add("--target", type=number(float, 0.01, 1e4), default=0.85,
        help="test accuracy to reach; for the hyperplane, loss (default: %(default)s)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=number(float, 0.01, 1000), help="passes over the data (default: 12)")
    length.add_argument("--seconds", type=number(float, 1, 86400), help="end each run after this long instead")
    add("--seed", type=number(int, 0, 2**31), default=1,
        help="seed of model, shards, batches and delays (default: %(default)s)")
    add("--out", type=pathlib.Path, default=pathlib.Path("demo-out"),
        help="directory of the results (default: %(default)s)")
    add("--torch", action="store_true",
        help="the workers are a PyTorch script (worker/python/examples/fashion_mnist.py) rather than prd-train")
    add("--keys", action="store_true",
        help="workers and prd show each other keys: what goes between them is encrypted, and between workers, too")
    more = parser.add_argument_group("the training")
    add = more.add_argument
    add("--model", choices=["mlp", "cnn", "hyperplane"], default="mlp",
        help="mlp or cnn on Fashion-MNIST, or regression of a hyperplane (default: %(default)s)")
    add("--shards", choices=["iid", "labels"], default="iid",
        help="iid: a random part of the data for each worker; labels: one or two classes each (default: %(default)s)")
    add("--batch", type=number(int, 1, 10000), default=256, help="examples per step (default: %(default)s)")
    add("--lr", type=number(float, 0, 100), help="learning rate of SGD (default: 0.25; hyperplane: 0.02)")
    add("--lr-decay", type=number(float, 0, 1e9), metavar="STEPS",
        help="the rate falls as 1/(1 + s/STEPS), s: the job's steps per worker; 0 = constant (default: 400; hyperplane: 0)")
    add("--step-ms", type=number(float, 1, 60000), help="a fast worker's step (default: 100; --quick: 40)")
    add("--limit-s", type=number(float, 1, 86400), help="give a run up after this long (default: three times "
        "what it should take)")
    add("--kill", type=kill, action="append", default=[], metavar="WHO:SECONDS",
        help="kill -9, that long into every run. WHO is prd, which is started again at once, or a worker's rank, "
        "which is not; may be repeated")
    add("--data", default="/usr/share/datasets/fashion-mnist", help="directory of Fashion-MNIST (default: %(default)s)")
    add("--bin", type=folder, required=True, help=argparse.SUPPRESS)
    return parser


def measure(options):
    """What evaluations tell: accuracy, the more the better, or loss, the less the better."""
    return "loss" if options.model == "hyperplane" else "accuracy"


def examples(options):
    """That a run of --epochs takes: Fashion-MNIST's, or the hyperplane's of eager-SGD's Table 1."""
    return round(options.epochs * (32_768 if options.model == "hyperplane" else 60_000))


def limit_s(options):
    """Three times what a run as slow as its slowest worker takes, and a minute."""
    if options.seconds:
        return 60 + 3 * options.seconds
    slowest_ms = options.step_ms * max(options.slow.values(), default=1)
    if options.inject:
        slowest_ms += longest_delay_ms(options.inject, slowest_ms)
    return 60 + 3 * slowest_ms / 1000 * examples(options) / (options.workers * options.batch)


def with_setting(parser, arguments):
    """The parsed arguments, and what they leave to their --setting."""
    given = parser.parse_args(arguments)
    setting = dict(SETTINGS.get(given.setting, {}))
    slow = setting.pop("slow", None)
    if given.epochs or given.seconds:
        setting.pop("epochs", None)
        setting.pop("seconds", None)
    if given.quick and setting:
        parser.error("--quick: allowed is without --setting; found both")
    parser.set_defaults(**setting)
    options = parser.parse_args(arguments)
    if options.slow is None:  # a default of the parser would be added to, not replaced
        options.slow = slow
    return options


def parse(arguments, catalogue):
    """Options with all that follows from others filled in; .engines are engines.Engine. Ends the program on errors.

    `catalogue`: gives engines.catalogue() of the programs in a folder.
    """
    parser = make_parser()
    options = with_setting(parser, arguments)

    try:
        options.engines = engines.parse(options.engines, catalogue(options.bin))
    except ValueError as error:
        parser.error(f"--engines: {error}")
    if options.torch and (options.inject or options.model == "hyperplane"):
        parser.error("--torch: found --inject or the hyperplane, allowed is Fashion-MNIST without --inject")
    if options.slow is None:
        options.slow = [] if options.inject else [(options.workers - 1, 5.0)]
    options.slow = dict(options.slow)
    if max(options.slow, default=0) >= options.workers:
        parser.error(f"--slow: found rank {max(options.slow)}, allowed is 0 to {options.workers - 1}")
    killed = [who for who, _ in options.kill if who != "prd"]
    if len(set(killed)) != len(killed) or any(who >= options.workers for who in killed):
        parser.error(f"--kill: allowed is each rank once, 0 to {options.workers - 1}")
    if measure(options) == "accuracy" and not 0.1 <= options.target <= 1:
        parser.error(f"--target: found {options.target:g}, allowed is 0.1 to 1")
    if not options.epochs and not options.seconds:
        options.epochs = 12
    lr, decay = (0.02, 0) if options.model == "hyperplane" else (0.25, 400)
    options.lr = lr if options.lr is None else options.lr
    options.lr_decay = decay if options.lr_decay is None else options.lr_decay
    if options.step_ms is None:
        options.step_ms = 40 if options.quick else 100
    options.evaluate_ms = 500
    if options.limit_s is None:
        options.limit_s = limit_s(options)
    return options
