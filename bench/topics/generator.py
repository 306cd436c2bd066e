"""How fast traffic is generated, into a buffer in the cache and to a file."""

import re
import subprocess

from harness import median

TITLE = "Generating traffic"
PROFILES = ["cic-w1", "cic-w3", "cic-w5", "imix", "flood64", "syn-flood"]


def measure(context):
    program = context.example("strata-traffic", "speed")
    packets = 2_000_000 if context.quick else 10_000_000
    rows = []
    for profile in PROFILES:
        rates = []
        for _ in range(1 if context.quick else 3):
            command = [program, profile, str(packets)]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            rates.append(float(re.search(r"([\d.]+) Mpps", said)[1]))
        rows.append([profile, round(median(rates), 1), round(1e3 / median(rates), 1)])
    return {
        "title": TITLE,
        "setup": f"{packets} packets a run, random payloads, one core.",
        "tables": [{"columns": ["profile", "Mpps", "ns per packet"], "rows": rows}],
        "charts": [],
    }
