"""Every figure, against peers, in one run: `make bench`.

    python run.py --strata PROGRAM [--quick] [--dir DIR] [TOPIC ...]
    python run.py --check

Runs the topics (topics/*.py), writes results/TOPIC.json, renders Markdown and charts, and says which
results are older than the code that they measure. --check only says that, and fails if the README
cites one of them as if it were not.
"""

import argparse
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import harness
import render
import stale

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


# These take an hour.
ONLY_IF_NAMED = ["soak"]
# What topics read from the environment, so that results can say how they were made.
KNOBS = ["RETRIES", "PROGRAMS", "MINUTES", "PPS"]


class Context:
    """The context of a topic."""

    def __init__(self, strata, directory, quick, part=""):
        self.strata, self.directory, self.quick, self.part = strata, directory, quick, part
        self._said = {}

    def generate(self, name, profile, packets, *more):
        """A generated trace, in the page cache."""
        path = self.directory / name
        command = [self.strata, "generate", "-o", path, "--profile", profile, "-c", str(packets), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        self._said[path] = done.stderr.split(" in ")[0].removeprefix("strata: ")
        return path

    def capture(self):
        """A real capture: a labelled one of STRATA_DATA, or the one of the demo."""
        data = Path(os.environ.get("STRATA_DATA", ROOT / "../shared/data"))
        labelled = data / "labelled/mix-test/trace.pcap"
        return labelled if labelled.exists() else ROOT / "demo/mix.pcap"

    def described(self, trace):
        """A description of a generated trace."""
        return self._said[trace]

    def example(self, package, name):
        """Builds an example program in release, with the names of its functions for callgrind."""
        subprocess.run(
            ["cargo", "rustc", "--release", "--locked", "--quiet", "-p", package, "--example", name,
             "--", "-C", "strip=none"],
            cwd=ROOT, check=True,
        )
        return ROOT / "target" / "release" / "examples" / name


def main():
    # So that whatever is running is stopped and restored too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--strata", type=Path)
    parser.add_argument("--check", action="store_true", help="only say which results are too old")
    parser.add_argument("--quick", action="store_true", help="take about two minutes, for rough figures")
    parser.add_argument("--dir", type=Path, help="write files here; default: a temporary directory")
    parser.add_argument("topic", nargs="*", help="topics to run; default: all of topics/")
    arguments = parser.parse_args()
    if arguments.check:
        sys.exit(1 if stale.report() else 0)
    if arguments.strata is None:
        parser.error("--strata is missing: the program to measure")
    sys.path.insert(0, str(HERE / "topics"))
    all_topics = sorted(path.stem for path in (HERE / "topics").glob("*.py"))
    topics = arguments.topic or [name for name in all_topics if name not in ONLY_IF_NAMED]
    directory = Path(tempfile.mkdtemp(prefix="strata-bench-", dir=arguments.dir))
    failed = []
    try:
        for topic in topics:
            print(f"{topic} ...", file=sys.stderr)
            name, _, part = topic.partition(":")
            context = Context(arguments.strata.resolve(), directory, arguments.quick, part)
            try:
                result = importlib.import_module(name).measure(context)
            except Exception:  # The other topics should still run.
                traceback.print_exc()
                failed.append(topic)
                continue
            finally:
                for path in directory.iterdir():
                    harness.remove([path])
            form = " QUICK=1" if arguments.quick else ""
            form += f" TOPICS={topic}" if part or name in ONLY_IF_NAMED else ""
            form += "".join(f" {n}='{os.environ[n]}'" for n in KNOBS if n in os.environ)
            harness.save(topic.replace(":", "-"), {"command": f"make bench{form}", **result})
    finally:
        shutil.rmtree(directory)
    render.main()
    stale.report()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
