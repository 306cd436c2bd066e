"""Markdown and charts from results/*.json: every number in them comes from there."""

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def markdown(result):
    machine = result["machine"]
    lines = [
        f"# {result['title']}",
        "",
        f"`{result['command']}` on {machine['cpu']}, {machine['cores']} cores"
        f"{', virtual' if machine.get('virtual') else ''}, Linux {machine['kernel']}.",
        result["setup"],
    ]
    for table in result["tables"]:
        lines += ["", *([f"{table['title']}:", ""] if "title" in table else [])]
        lines.append("| " + " | ".join(table["columns"]) + " |")
        lines.append("|" + "---|" * len(table["columns"]))
        for row in table["rows"]:
            cells = [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def chart(pyplot, drawn, path):
    labels = [label for label, _ in drawn["bars"]]
    values = [value for _, value in drawn["bars"]]
    figure, axes = pyplot.subplots(figsize=(7, 0.5 + 0.4 * len(labels)), layout="constrained")
    colours = ["#c2410c" if label.startswith("strata") else "#94a3b8" for label in labels]
    bars = axes.barh(labels, values, color=colours)
    axes.bar_label(bars, padding=3)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.set_xlabel(drawn["unit"])
    axes.set_title(drawn["title"], loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    # The same figures give the same file.
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main():
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    # Older results have a form of their own.
    results = [result for result in results if "tables" in result]
    for result in results:
        (RESULTS / f"{result['topic']}.md").write_text(markdown(result))
    try:
        import matplotlib
        matplotlib.use("svg")
        from matplotlib import pyplot
    except ImportError:
        print("no charts: matplotlib is not installed here (`make bench` runs with it)")
        return
    matplotlib.rcParams["svg.hashsalt"] = "strata"
    matplotlib.rcParams["svg.fonttype"] = "none"
    for result in results:
        for drawn in result["charts"]:
            chart(pyplot, drawn, RESULTS / f"{drawn['name']}.svg")


if __name__ == "__main__":
    main()
