"""Attacks at sites, on which models are judged that have not seen them: for `unseen` and `kept`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from strata import program
from strata import snapshots as snapshots_module
from strata.folds import first_half
from strata.snapshots import BENIGN, Snapshots

from . import standins

BUDGET = 0.1
TRAINED_ON = "mix-train"
# Captures with ordinary traffic of the hosts that are attacked.
CAPTURED = ("dns-tunnel", "rat-c2", "infected-hosts", "westermo-right", "mix-test")
OWN = (*CAPTURED, *standins.MADE)
OFFICE = "office"
SITES = {
    OFFICE: ("mix-test", "everyday-benign", "youtube"),
    "industrial": ("ot-benign",),
    "IoT": ("iot-week",),
    "mobile core": ("mobile-core",),
}
# Sources of the training capture that are the same attack, by the beginning of their names.
RELATED = {
    "cic2019-synflood": ("cic2019-synflood",),
    "cic2019-webddos": ("cic2019-webddos",),
    "westermo-right": ("westermo",),
}
RANDOM, FIRST = "random", "first bytes"
# From how many packets of a site is learnt.
ROWS_MAX = 30_000
REPETITIONS = 300
# Of an attack: packets with payload, and how many of them each keeps, by flow.
Kept = tuple[np.ndarray, dict[str, np.ndarray]]


def captures(
    folder: Path, scratch: Path, only: Sequence[str] = ()
) -> Iterator[tuple[str, Path, Path, Snapshots]]:
    """The labelled captures of a folder, and those that are made up: name, trace, labels and
    features. If names are given, only these and what models are trained on."""
    paths = {path.parent.name: path for path in sorted(folder.glob("*/labels.csv"))}
    needed = {TRAINED_ON, *CAPTURED, *(name for names in SITES.values() for name in names)}
    if missing := needed - set(paths):
        raise ValueError(f"{folder}: no capture {', '.join(sorted(missing))}")
    for labels in standins.write(scratch / "made"):
        paths[labels.parent.name] = labels
    if unknown := set(only) - set(paths):
        raise ValueError(f"{folder}: no capture {', '.join(sorted(unknown))}")
    if only:
        paths = {name: paths[name] for name in paths if name in (*only, TRAINED_ON)}
    for name, labels in tqdm(paths.items(), desc="features", disable=None):
        both = (labels.with_name("trace.pcap"), labels.with_name("trace.pcap.gz"))
        trace = next((path for path in both if path.exists()), None)
        if trace is None:
            raise ValueError(f"{labels.parent}: labels.csv, but no trace.pcap or trace.pcap.gz")
        yield name, trace, labels, features(trace, labels, scratch)


def features(trace: Path, labels: Path, scratch: Path) -> Snapshots:
    """Those of the packets of a capture that have a flow."""
    file = scratch / "features.parquet"
    program.run("features", "-r", trace, "--labels", labels, "-o", file)
    return snapshots_module.load([file])


def cases(captures: Mapping[str, Snapshots]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Attack, site and the site's captures."""
    found = [(name, "its own", (name,)) for name in OWN if name in captures]
    for name, data in captures.items():
        if name not in (*OWN, TRAINED_ON) and data.attack.any():
            there = {s: names for s, names in SITES.items() if set(names) <= set(captures)}
            found += [(name, site, names) for site, names in there.items()]
    return found


def without(data: Snapshots, related: Sequence[str]) -> Snapshots:
    """All but these sources."""
    return data.where(~np.array([str(s).startswith(tuple(related)) for s in data.source]))


def ordinary_halves(data: Snapshots) -> tuple[Snapshots, Snapshots]:
    """The ordinary packets of the first half of the flows, and those of the second."""
    data = data.where(data.label == BENIGN)
    early = first_half(data.columns["flow"], data.strata(), data.columns["ts_ns"])
    return data.where(early), data.where(~early)


def joined(parts: Sequence[Snapshots]) -> Snapshots:
    columns = {k: np.concatenate([p.columns[k] for p in parts]) for k in parts[0].columns}
    return Snapshots(columns, parts[0].units, parts[0].settings, [])


def at_most(data: Snapshots, rows: int = ROWS_MAX) -> Snapshots:
    """At most `rows` packets of it, by lot."""
    if len(data) <= rows:
        return data
    chosen = np.random.default_rng(1).choice(len(data), rows, replace=False)
    return data.where(np.sort(chosen))


def first_bytes(flow: np.ndarray, in_flow: np.ndarray, payload: np.ndarray) -> np.ndarray:
    """The higher, the fewer bytes of the flow come before."""
    order = np.lexsort((in_flow, flow))
    before = np.cumsum(payload[order]) - payload[order]
    starts = np.flatnonzero(np.r_[True, flow[order][1:] != flow[order][:-1]])
    lengths = np.diff(np.r_[starts, len(order)])
    score = np.empty(len(order))
    score[order] = np.repeat(before[starts], lengths) - before
    return score


def kept(score: np.ndarray, payload: np.ndarray, share: float) -> np.ndarray:
    """Which packets are kept whole of a budget, highest scores first."""
    lot = np.random.default_rng(1).random(len(score))
    order = np.lexsort((lot, -score))
    spent = np.cumsum(payload[order])
    chosen = np.zeros(len(score), bool)
    chosen[order[spent <= share * spent[-1]]] = True
    return chosen & (payload > 0)


def by_flow(
    attack: np.ndarray, payload: np.ndarray, flow: np.ndarray, chosen: Mapping[str, np.ndarray]
) -> Kept:
    """Of each attack flow, the packets with payload, and how many of these each keeps."""
    here = attack & (payload > 0)
    _, flow = np.unique(flow[here], return_inverse=True)
    count = np.bincount(flow)
    return count, {n: np.bincount(flow, k[here], minlength=len(count)) for n, k in chosen.items()}


def shares(of: Kept) -> dict[str, list[float]]:
    """Of packets and of flows."""
    count, by_name = of
    return {
        name: [round(float(k.sum() / count.sum()), 4), round(float(np.mean(k > 0)), 4)]
        for name, k in by_name.items()
    }


def bootstrap(of: Kept) -> dict[str, np.ndarray]:
    """The shares of packets and of flows, of as many flows drawn anew each time."""
    count, by_name = of
    rng = np.random.default_rng(1)
    drawn = rng.multinomial(len(count), np.full(len(count), 1 / len(count)), REPETITIONS)
    packets = drawn @ count
    return {
        name: np.column_stack([drawn @ k / packets, drawn @ (k > 0) / len(count)])
        for name, k in by_name.items()
    }


def macro(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """The mean of the shares of each."""
    return {
        name: np.mean([r["kept"][name] for r in rows], axis=0).round(4).tolist()
        for name in rows[0]["kept"]
    }


def differences(
    repeated: Sequence[dict[str, np.ndarray]], models: Sequence[str], others: Sequence[str]
) -> dict[str, Any]:
    """The macro averages of models less those of others, each pair once: median and 95 % of the
    repetitions."""
    mean = {name: np.mean([r[name] for r in repeated], axis=0) for name in repeated[0]}
    found: dict[str, Any] = {}
    for model in models:
        for other in others:
            is_new = model != other and f"{other} - {model}" not in found
            if is_new and model in mean and other in mean:
                low, middle, high = np.quantile(mean[model] - mean[other], (0.025, 0.5, 0.975), 0)
                values = np.column_stack([middle, low, high]).round(4).tolist()
                found[f"{model} - {other}"] = {"packets": values[0], "flows": values[1]}
    return found


def table(figures: dict[str, Any], more: Mapping[str, str] | None = None) -> list[str]:
    """Shares by attack, with more columns (titles by the key of a row), and differences."""
    names, more = list(figures["macro"]), more or {}
    lines = [
        "| " + " | ".join(["attack", "site", *names, *more.values()]) + " |",
        "|---|---|" + "---:|" * (len(names) + len(more)),
    ]
    mean = {"attack": "**mean**", "site": "", "kept": figures["macro"]}
    for row in [*figures["rows"], mean]:
        cells = [f"{100 * p:.0f} / {100 * f:.0f}" for p, f in (row["kept"][n] for n in names)]
        cells += [f"{100 * row[key]:.1f} %" if key in row else "" for key in more]
        lines.append(f"| {row['attack']} | {row['site']} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Differences of means in percentage points: median and 95 % interval of a paired "
        "bootstrap over flows:",
        "",
        "| | packets | flows |",
        "|---|---:|---:|",
    ]
    for name, found in figures["differences"].items():
        cells = [
            f"{100 * m:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
            for m, low, high in (found["packets"], found["flows"])
        ]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    return lines
