"""What the topics share: facts about the machine, runs with their disturbance, results."""

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import stale

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
# A run is discarded if others took more of the CPU than this.
DISTURBED = 0.01
CORES = os.cpu_count() or 1
TICK = os.sysconf("SC_CLK_TCK")


def machine():
    """The machine that the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "")
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": CORES,
        "avx512": "avx512f" in flags,
        "memory_gib": round(int(memory) / 2**20, 1),
        "kernel": platform.release(),
        "virtual": "hypervisor" in flags,
    }


def version(program):
    """The first line that a peer prints about itself."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else program


def have(program):
    return shutil.which(program) is not None


class Disturbance:
    """The share of all cores that other processes and the host take during a block."""

    def __init__(self):
        self.started = time.monotonic()
        self.before = self._others()
        self.steal = self._steal()

    @staticmethod
    def _steal():
        return int(Path("/proc/stat").read_text().split("\n")[0].split()[8])

    @staticmethod
    def _others():
        """Ticks by process, except our own children and kernel threads."""
        found, parents = {}, {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            pid = int(entry.name)
            parents[pid] = int(fields[1])
            found[pid] = int(fields[11]) + int(fields[12])
        ours = {os.getpid(), 2}

        def is_ours(pid):
            while pid > 0:
                if pid in ours:
                    return True
                pid = parents.get(pid, 0)
            return False

        return {pid: ticks for pid, ticks in found.items() if not is_ours(pid)}

    def share(self):
        after = self._others()
        ticks = sum(max(0, now - self.before.get(pid, 0)) for pid, now in after.items())
        ticks += self._steal() - self.steal
        return ticks / TICK / ((time.monotonic() - self.started) * CORES)


def remove(paths):
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()


def size(paths):
    files = [f for p in paths for f in ([p] if p.is_file() else p.rglob("*"))]
    return sum(f.stat().st_size for f in files if f.is_file())


def timed(command, outputs):
    """Wall seconds of a program that makes `outputs` from scratch, and the disturbance."""
    remove(outputs)
    os.sync()
    disturbance, started = Disturbance(), time.monotonic()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    wall, share = time.monotonic() - started, disturbance.share()
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()[-400:]}")
    return wall, share


def in_turns(programs, rounds):
    """Runs programs {name: (command, outputs)} in turns, each first once unmeasured.

    Returns {name: [seconds]} of undisturbed runs, at least one each, and how many were
    discarded."""
    for name, (command, outputs) in list(programs.items()):
        try:
            timed(command, outputs)
        except (RuntimeError, OSError) as error:
            print(f"  skipped: {name}: {error}", file=sys.stderr)
            del programs[name]
    seconds, discarded = {name: [] for name in programs}, 0
    spare = {name: [] for name in programs}
    for _ in range(2 * rounds):
        for name, (command, outputs) in programs.items():
            if len(seconds[name]) < rounds:
                wall, share = timed(command, outputs)
                (seconds[name] if share <= DISTURBED else spare[name]).append(wall)
                discarded += share > DISTURBED
    for name, kept in seconds.items():
        if not kept:
            # A busy machine: a doubtful figure, which `discarded` shows, is better than none.
            kept += spare[name]
    return seconds, discarded


def median(values):
    return statistics.median(values)


def save(topic, result):
    """Writes results/TOPIC.json; see README.md for its form."""
    RESULTS.mkdir(exist_ok=True)
    result = {"topic": topic, "commit": stale.head(), "machine": machine(), **result}
    (RESULTS / f"{topic}.json").write_text(json.dumps(result, indent=1) + "\n")
