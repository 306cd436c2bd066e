"""Which results are older than the code that they measure, and where they are cited.

A result says at which commit it was measured (`commit`); of older ones it is the commit that put them
into the repository. Older than the code is a result after which a commit has changed the sources of
the crates that it measures, or how it is measured.
"""

import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"

# Crates that a packet goes through on its way into a log.
PATH = ["capture", "pipeline", "blocks", "store", "sketch", "classify", "filter", "policy", "rules",
        "record", "wire", "sys"]
MODELS = ["sketch", "classify", "policy", "pipeline", "wire"]
# Of each result the crates that it measures; of others, all.
MEASURED = {
    "budget": [*PATH, "control", "bpf"],
    "dta": ["dta", "telemetry-run", "rdma", "wire", "sys"],
    "encapsulation": ["rdma"],
    "export": ["exporter", "wire"],
    "features": MODELS, "frontier": MODELS, "kept": MODELS, "links": MODELS, "model": MODELS,
    "presets.figures": MODELS, "sets": MODELS, "unseen": MODELS,
    "flows": PATH, "instructions": PATH, "live": [*PATH, "bpf"], "memory": PATH, "offline": PATH,
    "soak": [*PATH, "bpf"],
    "forest": ["classify", "sketch"],
    "gpv": ["gpv", "gpv-run", "classify", "wire"],
    "ring": ["send", "sys"],
    "rest": ["archive", "query", "store", "wire"],
    "rules": ["rules", "filter", "wire"],
    "sketch": ["sketch", "wire"],
    "stream": ["stream", "stream-run", "sys"],
    "trident": ["exporter", "agent", *PATH],
    "wire": [*PATH, "relay", "roce", "rdma"],
}
# Words that a line needs that cites an older result.
SAID = "not measured since"
CITED = re.compile(r"bench/results/([\w.-]+?)\.(?:md|json|svg)")


def git(*arguments):
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def head():
    """The commit that is measured now, with a plus where sources were changed since; None if there is
    no repository."""
    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--", "crates", "bench/topics")
    return (commit + ("+" if changed else "")) if commit else None


def topic_of(name):
    """`live-a` is a part of `live`."""
    return name if name in MEASURED else name.partition("-")[0]


def sources(name):
    """The paths that a result depends on."""
    topic = topic_of(name)
    crates = MEASURED.get(topic)
    code = [f"crates/*/{crate}/src" for crate in crates or ["*"]]
    return [*code, f"bench/topics/{topic}.py"]


def measured_at(path):
    """The commit of a result; empty if it is in no commit."""
    commit = json.loads(path.read_text()).get("commit") if path.suffix == ".json" else None
    return (commit or git("log", "-1", "--format=%H", "--", str(path))).rstrip("+")


def results():
    """Files of results by name: the figures, where there are any, else the text."""
    found = {}
    for path in sorted(RESULTS.glob("*.md")) + sorted(RESULTS.glob("*.json")):
        found[path.stem] = path
    return found


def ages():
    """[(name, day measured, commits to the code since, day of the newest)], oldest first."""
    rows = []
    for name, path in results().items():
        commit = measured_at(path)
        if not commit:
            # Just measured, and not committed yet.
            continue
        day = git("log", "-1", "--format=%as", commit)
        since = git("log", "--format=%as", f"{commit}..HEAD", "--", *sources(name)).split()
        # Of a commit that is not here (a shallow clone) nothing is known.
        rows.append((name, day, len(since) if day else None, since[0] if since else ""))
    return sorted(rows, key=lambda row: row[1])


def cited(name):
    """[(file, line)] of documents that cite a result without saying that it is old."""
    places = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if any(found == name for found in CITED.findall(line)) and SAID not in line:
                places.append((str(path.relative_to(ROOT)), number))
    return places


def report():
    """Prints the results that are older than their code; True if the README cites one as if it were
    not."""
    rows = ages()
    old = [row for row in rows if row[2]]
    unknown = [row[0] for row in rows if row[2] is None]
    if unknown:
        print(f"not known when they were measured (a shallow clone?): {', '.join(unknown)}")
    if not old:
        print("no result is older than the code that it measures")
        return False
    print("older than the code that they measure:")
    for name, day, commits, newest in old:
        print(f"  {name}: measured {day}, {commits} commits to its code since, the newest of {newest}")
    wrong = False
    for name, *_ in old:
        for file, line in cited(name):
            wrong |= file == "README.md"
            print(f"  {file}:{line} cites {name} without '{SAID} ...'")
    return wrong
