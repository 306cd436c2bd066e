"""The figures of `links`, in the layout of TitanLog's tables and next to them."""

from collections.abc import Sequence
from typing import Any

# TitanLog Tables V and VIII: average relative errors from W1 to W5, by Gb/s.
ERRORS = {
    "bytes": (
        "Size sum",
        "2e-2 3e-2 1e-2 6e-3 7e-3",
        "3e-2 3e-2 1e-2 1e-2 1e-2",
        "6e-2 5e-2 4e-2 3e-2 4e-2",
    ),
    "size_max": (
        "Size max",
        "6e-5 4e-5 6e-5 4e-5 1e-3",
        "5e-3 3e-3 3e-3 4e-3 4e-3",
        "2e-2 2e-2 2e-2 2e-2 2e-2",
    ),
    "size_min": (
        "Size min",
        "9e-4 4e-4 8e-4 1e-2 1e-2",
        "8e-2 5e-2 5e-2 8e-2 8e-2",
        "0.42 0.34 0.32 0.36 0.41",
    ),
    "size_avg": (
        "Size avg",
        "7e-5 2e-5 3e-5 4e-4 1e-3",
        "5e-3 3e-3 3e-3 5e-3 5e-3",
        "3e-2 2e-2 2e-2 2e-2 2e-2",
    ),
    "size_var": (
        "Size var",
        "1.36 1.64 1.19 1.88 28.1",
        "1.32 1.66 1.18 1.68 27.5",
        "1.36 1.68 1.16 1.67 16.0",
    ),
}
# TitanLog Tables VI and IX: accuracy of W1; precision, recall and accuracy of W2 to W5.
CLASSIFIER = {
    ("TitanLog", 100): ".951 .453 .999 .976 .817 .997 .942 .073 .394 .917 .835 .991 .976",
    ("TitanLog", 200): ".943 .435 .999 .974 .805 .997 .938 .066 .394 .910 .823 .991 .974",
    ("TitanLog", 400): ".918 .362 .998 .965 .765 .998 .921 .055 .340 .892 .783 .991 .967",
    ("NetBeacon", 100): ".944 .435 .999 .974 .834 .947 .935 .051 .348 .898 .816 .994 .973",
}
DAYS = ("W1", "W2", "W3", "W4", "W5")
MIX = "mix"
OURS, PAPER = "strata", "titanlog-paper"
# Whose sketches are compared: the names in the figures, and what the tables call them.
SKETCHES = {
    PAPER: "a switch's arithmetic",
    OURS: "ours",
    "strata, 128 MiB": "ours, 128 MiB",
}

ABOUT = (
    "`make links`. **Simulated time.** W1 to W5 are generated: the profiles cic-w1 to cic-w5 have"
    " the packets per second and the active flows of TitanLog's Table IV, here times 1, 2 and 4. "
    "Models are trained on one half of each day at 100 Gb/s, all days together, and judged on the "
    "other half at all rates. "
    "*mix* is real: mix-train to train, mix-test to judge, in 23, 46 and 92 streams at once, "
    "which differ in their addresses, with time compressed to the rate, as TitanLog makes more "
    "than 100 Gb/s of its captures. TitanLog's own figures, of five days of CIC-IDS2017 at 100 "
    "Gb/s and of a simulation at 200 and 400, stand beside ours; they are of other packets, so "
    "compare how they fall with the rate."
)
ABOUT_ERRORS = (
    "Average relative error over packets whose flow has a bucket. *A switch's arithmetic*: 16-bit"
    " registers, approximate squares, averages within 1 %. Both have the switch's 2 x 2^16 "
    "buckets (8 MiB); *128 MiB* is what a recording starts with. *Packets without a bucket* are "
    "in no error above; TitanLog does not count them."
)
ABOUT_ALL = (
    "The worst of the five days and of the mix, by Gb/s. First among packets whose flow has a "
    "bucket; then among all, where one without counts as an error of 1, since its features read "
    "0."
)
ABOUT_CLASSIFIER = (
    "Precision, recall and accuracy of packets; W1 has no attacks. All have the switch's buckets,"
    " but for *128 MiB*. *Packet trees alone*: as if no flow had a bucket; the rate does not "
    "matter to them. Presets have operating points of their own: ours alarms on less, so it is "
    "shown at the recall of titanlog-paper too (a little above it, where packets share a score). "
    "The generated attacks go to services of their own, so the presets that look at ports find "
    "them by these; ours does not, since in a capture ports name its hosts. Compare how figures "
    "fall with the rate; for how well real attacks are found, see the mix."
)


def in_markdown(figures: dict[str, Any]) -> str:
    """The figures as tables."""
    rates = {int(rate): days for rate, days in figures["rates"].items()}
    lines = ["# As on a link of 100, 200 and 400 Gb/s", "", ABOUT]
    lines += [f"Windows of {figures['window_ms']} ms.", "", "## Errors of the sketches", ""]
    lines += [ABOUT_ERRORS, "", *_errors(rates), "", "## All features", "", ABOUT_ALL, ""]
    lines += [*_all_features(rates), "", "## The classifier", "", ABOUT_CLASSIFIER, ""]
    names = list(dict.fromkeys(name for days in rates.values() for name in days[DAYS[0]]))
    lines += _classifier(rates, names, None)
    # Only of what has attacks.
    for rate, days in rates.items():
        cells = _cells([of[OURS].get("at_recall", {}) for of in days.values()])
        lines.append(f"| {OURS}, at the recall of {PAPER} | {rate} | " + " | ".join(cells) + " |")
    about = "Of packets without a bucket alone, on which the packet trees of each decide:"
    lines += [
        "",
        about,
        "",
        *_classifier(rates, [name for name in names if "alone" not in name], "of_those"),
    ]
    return "\n".join(lines) + "\n"


def _errors(rates: dict[int, Any]) -> list[str]:
    columns = (*DAYS, MIX)
    lines = [
        "| | Gb/s | | " + " | ".join(columns) + " |",
        "|---|---:|---|" + "---:|" * len(columns),
    ]
    for feature, (title, *theirs) in ERRORS.items():
        of_rate = dict(zip((100, 200, 400), theirs, strict=True))
        for rate, days in rates.items():
            lines.append(_line(title, rate, "*TitanLog*", [*of_rate[rate].split(), ""]))
            for name, what in SKETCHES.items():
                cells = [f"{days[d][name]['errors'][feature]:.0e}" for d in columns]
                lines.append(_line(title, rate, what, [_short(cell) for cell in cells]))
    for rate, days in rates.items():
        flows = [f"{days[d]['strata']['flows_max']:,}" for d in columns]
        lines.append(_line("Flows in a window", rate, "", flows))
    for rate, days in rates.items():
        for name, what in SKETCHES.items():
            cells = [f"{days[d][name]['without_bucket']:.1%}" for d in columns]
            lines.append(_line("Packets without a bucket", rate, what, cells))
    return lines


def _all_features(rates: dict[int, Any]) -> list[str]:
    titles = [f"{rate}: {what}" for rate in rates for what in ("bucket", "all")]
    lines = ["| | | " + " | ".join(titles) + " |", "|---|---|" + "---:|" * len(titles)]
    for feature in sorted(next(iter(rates.values()))[DAYS[0]]["strata"]["errors"]):
        for name, what in SKETCHES.items():
            cells = []
            for days in rates.values():
                of = [days[day][name] for day in (*DAYS, MIX)]
                cells.append(max(o["errors"][feature] for o in of))
                cells.append(max(of_all(o["errors"][feature], o["without_bucket"]) for o in of))
            shown = " | ".join(_short(f"{cell:.0e}") for cell in cells)
            lines.append(f"| {feature} | {what} | {shown} |")
    return lines


def of_all(error: float, without_bucket: float) -> float:
    """The average error of all packets, if it is 1 of those without a bucket."""
    return error * (1 - without_bucket) + without_bucket


def _classifier(rates: dict[int, Any], names: Sequence[str], part: str | None) -> list[str]:
    heads = [f"{day} PRE | REC | ACC" for day in (*DAYS[1:], MIX)]
    lines = ["| | Gb/s | W1 ACC | " + " | ".join(heads) + " |"]
    lines.append("|---|---:|---:|" + "---:|---:|---:|" * len(heads))
    if part is None:
        for (name, rate), cells in CLASSIFIER.items():
            shown = [f"0{cell}" for cell in cells.split()] + [""] * 3
            lines.append(f"| *{name}* | {rate} | " + " | ".join(shown) + " |")
    for name in names:
        for rate, days in rates.items():
            if name not in days[DAYS[0]]:
                continue
            if part is not None and not any(days[d][name]["without_bucket"] for d in days):
                continue
            found = [of[name] for of in days.values()]
            cells = _cells(found if part is None else [of[part] for of in found])
            lines.append(f"| {name} | {rate} | " + " | ".join(cells) + " |")
    return lines


def _cells(found: Sequence[dict[str, Any]]) -> list[str]:
    """Of each day, of which the first has no attacks."""
    cells = []
    for rates in found:
        keys = ("precision", "recall", "accuracy") if cells else ("accuracy",)
        cells += ["" if rates.get(key) is None else f"{rates[key]:.3f}" for key in keys]
    return cells


def _line(title: str, rate: int, what: str, cells: Sequence[str]) -> str:
    return f"| {title} | {rate} | {what} | " + " | ".join(cells) + " |"


def _short(number: str) -> str:
    """As the paper writes it: 2e-2."""
    mantissa, exponent = number.split("e")
    return f"{mantissa}e{int(exponent)}" if float(mantissa) else "0"
