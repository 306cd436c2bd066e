"""HTML reports: one file each, nothing fetched, plots as SVG."""

import io
import json
from pathlib import Path
from typing import Any

import jinja2
import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

COLOURS = ("#1f6f8b", "#d1495b", "#edae49", "#66a182", "#7a5c99", "#8d6b4f")
INK = "#26323a"
AXIS = "#9aa5ab"
GRID = "#e4e8ea"
# Colours of a plot that are those of the page around it, which may be dark.
OF_PAGE = {INK: "currentColor", AXIS: "var(--axis)", GRID: "var(--grid)"}
plt.rcParams.update(
    {
        "font.family": "sans-serif",
        "font.size": 10,
        "svg.fonttype": "none",
        "svg.hashsalt": "strata",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": AXIS,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.grid": True,
        "grid.color": GRID,
        "legend.frameon": False,
        "savefig.transparent": True,
        "axes.axisbelow": True,
    }
)


def json_path(page: Path) -> Path:
    """The path of a page's figures."""
    # Not report.json: a model may have that name.
    return page.with_suffix(".figures.json")


def _percent(value: float | None, digits: int = 1) -> str:
    return "undefined" if value is None else f"{100 * value:.{digits}f} %"


def _figure(value: float | None, digits: int = 3) -> str:
    """A share as a number from 0 to 1."""
    return "undefined" if value is None else f"{value:.{digits}f}"


def _score(values: list[float]) -> str:
    return f"{values[0]:.3f} <small>{values[1]:.2f}&ndash;{values[2]:.2f}</small>"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _ns(value: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value} ns"


def _page(template: str, path: Path, figures: dict[str, Any], **plots: str) -> None:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("strata"), autoescape=True, trim_blocks=True
    )
    environment.filters.update(percent=_percent, figure=_figure, score=_score, count=_count, ns=_ns)
    text = environment.get_template(template).render(figures=figures, **plots)
    path.write_text(text)
    json_path(path).write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n")


def _svg(figure: Any) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    svg = text.getvalue()[text.getvalue().index("<svg") :]
    for colour, of_page in OF_PAGE.items():
        svg = svg.replace(colour, of_page)
    return svg


def _curve(figures: dict[str, Any]) -> str:
    figure, axes = plt.subplots(figsize=(5.2, 3.6))
    points = figures["curve"]
    axes.step([p[0] for p in points], [p[1] for p in points], where="post", color=COLOURS[0])
    if figures["recall"] is not None and figures["precision"] is not None:
        axes.plot([figures["recall"]], [figures["precision"]], "o", color=COLOURS[1])
        axes.annotate(
            "operating point",
            (figures["recall"], figures["precision"]),
            (-8, -16),
            textcoords="offset points",
            ha="right",
            color=COLOURS[1],
        )
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.03))
    return _svg(figure)


def _positions(figures: dict[str, Any]) -> str:
    rows = figures["positions"]
    figure, axes = plt.subplots(figsize=(5.2, 3.6))
    names = [_range(row) for row in rows]
    for key, packets, colour, name in (
        ("recall", "attack_packets", COLOURS[1], "attack packets caught"),
        ("false_alarm_rate", "benign_packets", COLOURS[0], "benign packets kept whole"),
    ):
        at = [i for i, row in enumerate(rows) if row[packets]]
        axes.plot(at, [rows[i][key] for i in at], "o-", color=colour, label=name)
    axes.set_xticks(range(len(rows)), names, rotation=45, ha="right")
    axes.set(xlabel="number of the packet in its flow", ylim=(-0.03, 1.05))
    axes.legend(frameon=False)
    return _svg(figure)


def _range(row: dict[str, Any]) -> str:
    low, high = row["from"], row["to"]
    if high is None:
        return f"{low}+"
    return str(low) if low == high else f"{low}-{high}"


def _sources(figures: dict[str, Any]) -> str:
    rows = [row for row in figures["sources"] if not row.get("macro")]
    figure, axes = plt.subplots(figsize=(5.2, 0.5 + 0.42 * len(rows)))
    for place, (key, colour) in enumerate((("recall", COLOURS[1]), ("precision", COLOURS[0]))):
        for index, row in enumerate(rows):
            value, low, high = row[key]
            y = index + 0.2 * (2 * place - 1)
            axes.barh(y, value, 0.36, color=colour, label=key if index == 0 else None)
            axes.plot([low, high], [y, y], color=INK, linewidth=1)
    axes.set_yticks(range(len(rows)), [row["source"] for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1.02)
    if rows:
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2)
    return _svg(figure)


def _scores(figures: dict[str, Any]) -> str:
    drift = figures.get("drift")
    if not drift:
        return ""
    figure, axes = plt.subplots(figsize=(5.2, 2.6))
    at = [i / 10 + 0.05 for i in range(10)]
    axes.bar([x - 0.02 for x in at], drift["scores_expected"], 0.036, color=COLOURS[3])
    axes.bar([x + 0.02 for x in at], drift["scores"], 0.036, color=COLOURS[2])
    axes.legend(["training", "this capture"], frameon=False)
    axes.set(xlabel="anomaly score", ylabel="share of packets", yscale="log", ylim=(1e-4, 1.5))
    return _svg(figure)


def write_evaluation(path: Path, figures: dict[str, Any]) -> None:
    """The page of one model on one capture, and its figures as JSON next to it."""
    _page(
        "evaluation.html",
        path,
        figures,
        curve=_curve(figures),
        positions=_positions(figures),
        sources=_sources(figures),
        scores=_scores(figures),
    )


def as_text(figures: dict[str, Any]) -> str:
    """The main figures, for a terminal."""
    lines = [
        f"{_counted(figures['packets'], 'packet')} of {_counted(figures['flows'], 'flow')}, "
        f"{figures['attack_packets']:,} of them attacks",
        f"recall {_figure(figures['recall'], 4)}, precision {_figure(figures['precision'], 4)}, "
        f"F1 {_figure(figures['f1'], 4)}, accuracy {figures['accuracy']:.4f}",
        f"kept whole: {_percent(figures['packets_kept_whole'])} of packets, "
        f"{_percent(figures['bytes_kept_whole'])} of bytes",
    ]
    if figures["attack_packets"] == 0:
        lines[1] = (
            "no attack packets: recall undefined; false alarms: "
            f"{_percent(figures['false_alarm_rate'], 2)} of packets"
        )
    for row in figures["sources"]:
        value, low, high = row["f1"]
        known = " (unseen in training)" if row.get("seen_in_training") is False else ""
        if row.get("macro"):
            lines.append(f"  mean F1, {row['source']}: {value:.3f} ({low:.3f} to {high:.3f})")
        else:
            lines.append(
                f"  {row['source']}{known}: recall {row['recall'][0]:.3f}, "
                f"precision {row['precision'][0]:.3f}, F1 {value:.3f} ({low:.3f} to {high:.3f})"
            )
    return "\n".join(lines)


def _counted(number: int, thing: str) -> str:
    """As in `1 packet` and `2 packets`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def training_as_text(made: dict[str, Any]) -> str:
    """What a model was trained on and how it does on flows that its forests have not seen, for a
    terminal; `made` is the model's `training`."""
    verdict, labels = made["verdict"], made["labels"]
    classes = (
        f"{_words(name)} {_counted(row['packets'], 'packet')} of {_counted(row['flows'], 'flow')}"
        for name, row in labels["classes"].items()
    )
    lines = [f"labels: {'; '.join(classes)}"]
    lines.append(
        f"not used: {_counted(labels.get('unlabelled', 0), 'packet')} without a label, "
        f"{labels.get('without_flow', 0):,} without a flow, {labels.get('double', 0):,} that "
        f"another file has; {labels.get('repeated', 0):,} label lines repeat another"
    )
    if labels.get("near_alert"):
        lines.append(
            f"{labels['near_alert']:,} of the packets without a label are near an alert; "
            "all others without an alert count as benign, and so do attacks that the IDS missed"
        )
    if labels.get("logged"):
        lines.append(
            f"from logs: {_counted(labels['logged'], 'packet')}, "
            f"{labels['cut'] / labels['logged']:.1%} of them as headers, which are exact; "
            f"{labels.get('not_logged', 0):,} were not logged"
        )
    if labels["mixed_flows"]:
        lines.append(f"{labels['mixed_flows']:,} flows have packets of several classes")
    lines.append(
        f"cross-validated, {made['folds']} folds, each on flows that its forest has not seen; "
        f"bounds hold with {verdict['confidence']:.0%} confidence, a flow being one observation:"
    )
    rows = [*verdict["sources"], {**verdict["together"], "source": "all attacks"}]
    names = [_words(row["source"]) for row in rows]
    width = max(6, *map(len, names))
    lines.append(
        f"  {'source':{width}} {'packets':>10} {'flows':>8} {'recall':>7} {'at least':>8} "
        f"{'precision':>9} {'F1':>6}"
    )
    for name, row in zip(names, rows, strict=True):
        lines.append(
            f"  {name:{width}} {row['packets']:>10,} {row['flows']:>8,} {row['recall']:>7.3f} "
            f"{row['recall_at_least']:>8.3f} {row['precision']:>9.3f} {row['f1']:>6.3f}"
            + (f"  {row['verdict']}" if "verdict" in row else "")
        )
    lines.append(
        f"mean F1 of the sources {verdict['together']['macro_f1']:.3f} "
        f"({verdict['without_bucket_macro_f1']:.3f} for packets without a bucket); false alarms "
        f"{_percent(verdict['false_alarm_rate'], 2)} of benign packets; keeps "
        f"{verdict['bytes_kept_whole']:.1%} of bytes whole"
    )
    lines.append(_verdict(verdict))
    return "\n".join(lines)


def _verdict(verdict: dict[str, Any]) -> str:
    findings = [f"  {_words(finding)}" for finding in verdict["findings"]]
    advice = [f"  to do: {line}" for line in verdict["advice"]]
    if verdict["met"]:
        head = "verdict: met" + (", except as follows" if findings else "")
    else:
        head = "verdict: MISSED (exit status 3)"
    return "\n".join([head, *findings, *advice])


def _words(text: str) -> str:
    """A name from a label file, without what a terminal would act on."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _macro(judged: dict[str, Any]) -> dict[str, list[float]]:
    return {row["source"]: row["f1"] for row in judged["sources"] if row.get("macro")}


def _bars(capture: dict[str, Any]) -> str:
    presets = capture["presets"]
    first = next(iter(presets.values()))
    names = [row["source"] for row in first["sources"] if not row.get("macro")]
    figure, axes = plt.subplots(figsize=(9, 3.2))
    width = 0.8 / len(presets)
    for index, (preset, judged) in enumerate(presets.items()):
        rows = {row["source"]: row["f1"] for row in judged["sources"]}
        for place, name in enumerate(names):
            value, low, high = rows[name]
            x = place + (index - (len(presets) - 1) / 2) * width
            label = preset if place == 0 else None
            axes.bar(x, value, width * 0.92, color=COLOURS[index % len(COLOURS)], label=label)
            axes.plot([x, x], [low, high], color=INK, linewidth=0.8)
    axes.set_xticks(range(len(names)), names, rotation=15, ha="right")
    axes.grid(axis="x", visible=False)
    axes.set(ylabel="F1", ylim=(0, 1.03))
    axes.legend(frameon=False, ncols=len(presets), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return _svg(figure)


def write_comparison(path: Path, figures: dict[str, Any]) -> None:
    """The page that compares presets, and its figures as JSON next to it."""
    captures = [c for c in figures["captures"] if not c["attacks_only"]]
    _page(
        "comparison.html",
        path,
        figures,
        plots={capture["name"]: _bars(capture) for capture in captures},
        macro=_macro,
    )


def comparison_as_text(figures: dict[str, Any]) -> str:
    """The main figures, for a terminal."""
    lines = []
    for capture in figures["captures"]:
        lines.append(f"{capture['test']}, trained on {capture['train']}")
        for preset, judged in capture["presets"].items():
            if capture["attacks_only"]:
                lines.append(f"  {preset:15} recall {_figure(judged['recall'], 4)}")
                continue
            macro = ", ".join(f"{k} {v[0]:.3f}" for k, v in _macro(judged).items())
            alarms = _percent(judged["false_alarm_rate"], 2)
            lines.append(f"  {preset:15} mean F1: {macro}; false alarms {alarms}")
    return "\n".join(lines)
