"""Parameters of a flow cache for a limit of memory (*Flow, sections 5.4 and 7.1): a software
model of the cache, `strata gpv model`, searched by optuna."""

import csv
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna

from . import program

# Blocks that a pointer of 16 bits tells apart, as `Parameters::switch_bytes` has it.
NEAR_BLOCKS_MAX = 65_534


@dataclass(frozen=True)
class Costs:
    """Bytes that the parts of a cache take."""

    slot: int
    block: int
    packet: int
    # Of a slot and a block, for few and for many blocks.
    pointers: tuple[int, int] = (0, 0)

    def pointer(self, blocks: int) -> int:
        """Bytes of a pointer to one of this number of blocks."""
        if not blocks:
            return 0
        return self.pointers[0 if blocks <= NEAR_BLOCKS_MAX else 1]


# As `Parameters::switch_bytes` and `Parameters::cache_bytes` have them, the latter by the form of
# vectors.
SWITCH = Costs(slot=24, block=0, packet=4, pointers=(2, 4))
RUN = {
    "strata": Costs(slot=64, block=4, packet=28),
    "paper": Costs(slot=64, block=4, packet=4),
    "paper-seq": Costs(slot=64, block=4, packet=8),
}


def _costs(form: str | None) -> Costs:
    """Of `strata gpv run` with this form, or of a switch."""
    return SWITCH if form is None else RUN[form]


@dataclass(frozen=True)
class Parameters:
    """A cache, as `strata_gpv::Parameters` has it."""

    slots: int
    narrow: int
    wide: int
    blocks: int

    def memory(self, costs: Costs = SWITCH) -> int:
        """Bytes of memory."""
        pointer = costs.pointer(self.blocks)
        slot = costs.slot + pointer + self.narrow * costs.packet
        block = costs.block + pointer + self.wide * costs.packet
        return self.slots * slot + self.blocks * block


# The default of `strata gpv run`: Table 2 of the paper.
PAPER = Parameters(16_384, 4, 24, 4_096)


def divided(
    memory: int, length: int, narrow: int, share: float, ways: int, costs: Costs = SWITCH
) -> Parameters:
    """The cache of `memory` bytes, of which `share` is for slots. Without a wide buffer
    (`narrow` is `length`) all of it is."""
    wide = length - narrow
    for pointer in costs.pointers if wide else (0,):
        slot = costs.slot + pointer + narrow * costs.packet
        slots = int(memory * (share if wide else 1.0)) // slot // ways * ways
        block = costs.block + pointer + wide * costs.packet
        blocks = (memory - slots * slot) // block if wide else 0
        if blocks <= NEAR_BLOCKS_MAX:
            break
    return Parameters(slots, narrow, wide if blocks else 0, blocks)


class Model:
    """A software model of the cache: the program, with the packets of captures in memory."""

    def __init__(self, process: subprocess.Popen[str], costs: Costs) -> None:
        self._process = process
        self.costs = costs

    def _ask(self, numbers: Sequence[int]) -> Iterator[str]:
        """The lines of an answer."""
        process = self._process
        try:
            process.stdin.write(" ".join(map(str, numbers)) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass
        while True:
            answer = process.stdout.readline()
            if not answer:
                said = process.stderr.read().strip().removeprefix("strata: ")
                raise program.ProgramError(said or "strata gpv model ended")
            yield answer
            if not answer.startswith("part "):
                return

    def ratio(self, parameters: Parameters, ways: int, seed: int = 1) -> float:
        """Vectors per packet; the seed decides which flows share a slot. Raises
        `program.ProgramError` with the program's message if it fails."""
        (answer,) = self._ask([*asdict(parameters).values(), ways, seed])
        first, *rest = answer.split(maxsplit=1)
        if first == "refused":
            raise program.ProgramError(f"{parameters}: {rest[0].strip()}")
        vectors, memory = map(int, rest[0].split())
        assert memory == parameters.memory(self.costs), (memory, parameters)
        return vectors / int(first)

    def mean_ratio(self, parameters: Parameters, ways: int, seeds: Sequence[int]) -> float:
        """The mean of `ratio` over these seeds."""
        return fmean(self.ratio(parameters, ways, seed) for seed in seeds)

    def rates(self, parameters: Parameters, every_ms: int) -> list[tuple[int, int]]:
        """Packets and vectors of each whole part of `every_ms` ms."""
        *parts, _ = self._ask([*asdict(parameters).values(), 1, 1, every_ms])
        pairs = [part.split()[1:] for part in parts]
        return [(int(packets), int(vectors)) for packets, vectors in pairs]


@contextmanager
def model(captures: Sequence[str | Path], form: str | None = None) -> Iterator[Model]:
    """The model over these captures: of `strata gpv run` with this form, or of a switch."""
    reads = [word for capture in captures for word in ("-r", str(capture))]
    kind = "--hardware" if form is None else f"--format={form}"
    with subprocess.Popen(
        [program.find(), "gpv", "model", kind, *reads],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Model(process, _costs(form))
        finally:
            # It may have ended, with its last input unread.
            with suppress(BrokenPipeError):
                process.stdin.close()


def _check(memory: int, length: int, ways: int, static: bool, costs: Costs = SWITCH) -> None:
    if divided(memory, length, length if static else 2, 0.5, ways, costs).slots < ways:
        raise ValueError(f"{memory} bytes cannot hold a cache of {ways} ways")


def search(
    cache: Model, memory: int, length: int, ways: int, static: bool, trials: int, seed: int
) -> optuna.Study:
    """Tries parameters; each trial has them, and their memory, as attributes."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    # The longest buffers; and the division of Table 2 of the paper.
    if static:
        study.enqueue_trial({"narrow": length})
    elif length > PAPER.narrow:
        slots = Parameters(PAPER.slots, PAPER.narrow, 0, 0).memory(cache.costs)
        slots += PAPER.slots * cache.costs.pointer(PAPER.blocks)
        share = slots / PAPER.memory(cache.costs)
        study.enqueue_trial({"narrow": PAPER.narrow, "share": share})
    known: dict[Parameters, float] = {}

    def objective(trial: optuna.Trial) -> float:
        if static:
            narrow, share = trial.suggest_int("narrow", 2, length), 1.0
            parameters = divided(memory, narrow, narrow, share, ways, cache.costs)
        else:
            narrow = trial.suggest_int("narrow", 2, max(2, length - 1))
            share = trial.suggest_float("share", 0.2, 0.98)
            parameters = divided(memory, length, narrow, share, ways, cache.costs)
        trial.set_user_attr("parameters", asdict(parameters))
        trial.set_user_attr("memory", parameters.memory(cache.costs))
        if parameters.slots < ways:
            return 1.0
        if parameters not in known:
            known[parameters] = cache.ratio(parameters, ways)
        return known[parameters]

    study.optimize(objective, n_trials=trials)
    return study


# Seeds other than that of the search, which has chosen what is best with its own.
SEEDS = range(2, 7)
# What is less than this is chance: which flows share a slot.
BETTER_PERCENT = 0.1


def tune(
    captures: Sequence[str | Path],
    *,
    memory: int,
    length: int = 28,
    ways: int = 1,
    static: bool = False,
    trials: int = 100,
    seed: int = 1,
    form: str | None = None,
) -> dict[str, Any]:
    """The best parameters, their vectors per packet next to those of the default parameters on the
    same packets, and every trial. For `strata gpv run` with this form, or for a switch."""
    costs = _costs(form)
    _check(memory, length, ways, static, costs)
    with model(captures, form) as cache:
        study = search(cache, memory, length, ways, static, trials, seed)
        best = study.best_trial
        found = best.user_attrs["parameters"]
        ratio = cache.mean_ratio(Parameters(**found), ways, SEEDS)
        usual = cache.mean_ratio(PAPER, ways, SEEDS)
    fewer = 100 * (1 - ratio / usual)
    return {
        **found,
        "memory": best.user_attrs["memory"],
        "ways": ways,
        "form": form,
        "vectors_per_packet": ratio,
        "default": {
            **asdict(PAPER),
            "memory": PAPER.memory(costs),
            "vectors_per_packet": usual,
        },
        # Negative if there are more.
        "fewer_vectors_percent": fewer,
        "is_better": fewer >= BETTER_PERCENT,
        "trials": [
            {**trial.user_attrs["parameters"], "vectors_per_packet": trial.value}
            for trial in study.trials
        ],
        "memory_max": memory,
    }


def _compared(found: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """How the parameters found compare with the default ones, and which to use."""
    usual = found["default"]
    said = (
        f"default {100 * usual['vectors_per_packet']:.2f} % of packets, "
        f"memory {usual['memory']:,} bytes: "
    )
    if found["is_better"]:
        fewer = found["fewer_vectors_percent"]
        return said + f"the parameters found make {fewer:.2f} % fewer vectors", found
    if usual["memory"] <= found["memory_max"]:
        return said + "no better parameters were found; keep the default", usual
    return said + "the parameters found are not better, but need less memory", found


def printed(found: dict[str, Any], as_json: bool) -> str:
    """What `strata gpv tune` prints."""
    if as_json:
        return json.dumps(found, indent=1)
    compared, use = _compared(found)
    names = {"slots": "slots", "narrow": "narrow", "wide": "wide", "wide-blocks": "blocks"}
    options = [f"--{option} {use[name]}" for option, name in names.items()]
    if found["form"] not in (None, "strata"):
        options.insert(0, f"-F {found['form']}")
    command = f"\nstrata gpv run {' '.join(options)}" if found["form"] else ""
    return (
        f"slots {found['slots']:,}\nnarrow {found['narrow']}\nwide {found['wide']}\n"
        f"blocks {found['blocks']:,}\nmemory {found['memory']:,} bytes\n"
        f"vectors {100 * found['vectors_per_packet']:.2f} % of packets, "
        f"the best of {len(found['trials'])} trials\n"
        f"{compared}{command}"
    )


MIB = 1 << 20
MEMORIES = (MIB // 4, MIB // 2, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB)
LENGTHS = (4, 8, 12, 16, 20, 24, 28, 32)
CACHES = [
    (static, ways, "static" if static else "dynamic", "8-way LRU" if ways == 8 else "collision")
    for static in (True, False)
    for ways in (1, 8)
]
EVERY_MS = 100


def figures(
    captures: Sequence[str | Path],
    folder: str | Path,
    *,
    memory: int,
    length: int,
    trials: int,
    seed: int,
) -> str:
    """Figures 6 to 8 of the paper, as data and plots in `folder`; what was made."""
    _check(memory, max(length, *LENGTHS), 8, True)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    points = []
    with model(captures) as cache:
        rates = cache.rates(PAPER, EVERY_MS)
        for static, ways, buffers, eviction in CACHES:
            for figure, bytes_, tuples in [
                *((7, bytes_, length) for bytes_ in MEMORIES),
                *((8, memory, tuples) for tuples in LENGTHS),
            ]:
                study = search(cache, bytes_, tuples, ways, static, trials, seed)
                best = study.best_trial
                found = best.user_attrs["parameters"].values()
                points.append([figure, buffers, eviction, bytes_, tuples, *found, best.value])
    _write(
        folder / "curves.csv",
        [
            "figure",
            "buffers",
            "eviction",
            "memory",
            "length",
            "slots",
            "narrow",
            "wide",
            "blocks",
            "vectors_per_packet",
        ],
        points,
    )
    _write(
        folder / "rates.csv",
        ["ms", "packets", "vectors"],
        [[EVERY_MS * index, *pair] for index, pair in enumerate(rates)],
    )
    _plot_curves(folder / "curves.svg", points, memory, length)
    _plot_rates(folder / "rates.svg", rates)
    names = ", ".join(
        str(folder / name)
        for name in sorted(("curves.csv", "curves.svg", "rates.csv", "rates.svg"))
    )
    return f"{len(points)} points, {len(rates)} parts of {EVERY_MS} ms: {names}"


def _write(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(names)
        table.writerows(rows)


def _plot_curves(path: Path, points: Sequence[Sequence[Any]], memory: int, length: int) -> None:
    from .report import plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    for _, _, buffers, eviction in CACHES:
        style = {
            "label": f"{buffers}, {eviction}",
            "color": "tab:blue" if buffers == "dynamic" else "tab:orange",
            "linestyle": "-" if eviction == "collision" else "--",
            "marker": "o",
        }
        of = [p for p in points if p[1:3] == [buffers, eviction]]
        by_memory = [(p[3] / MIB, 100 * p[-1]) for p in of if p[0] == 7]
        by_length = [(p[4], 100 * p[-1]) for p in of if p[0] == 8]
        left.plot(*zip(*by_memory, strict=True), **style)
        right.plot(*zip(*by_length, strict=True), **style)
    left.set(
        xscale="log",
        xlabel=f"memory (MiB), vectors of {length}",
        ylabel="vectors per packet (%)",
        ylim=(0, None),
    )
    left.set_xticks([m / MIB for m in MEMORIES], [f"{m / MIB:g}" for m in MEMORIES])
    right.set(xlabel=f"packets of a vector at most, {memory / MIB:g} MiB")
    left.legend()
    figure.savefig(path)
    plt.close(figure)


def _plot_rates(path: Path, rates: Sequence[tuple[int, int]]) -> None:
    from .report import plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    seconds = [index * EVERY_MS / 1000 for index in range(len(rates))]
    for index, name in enumerate(("packets", "vectors")):
        axes.plot(seconds, [pair[index] * 1000 / EVERY_MS for pair in rates], label=name)
    axes.set(xlabel="s", ylabel="per second", ylim=(0, None))
    axes.legend()
    figure.savefig(path)
    plt.close(figure)
