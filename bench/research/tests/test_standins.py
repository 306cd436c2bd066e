"""Made-up traffic is what others take for traffic of its kind."""

import os
import shutil
import subprocess

import pytest
from research import standins


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return {labels.parent.name: labels for labels in standins.write(folder)}


def test_the_same_is_made_again(made, tmp_path):
    for labels in standins.write(tmp_path):
        before = made[labels.parent.name]
        assert labels.read_text() == before.read_text()
        trace = labels.with_name("trace.pcap").read_bytes()
        assert trace == before.with_name("trace.pcap").read_bytes()


@pytest.mark.skipif(
    shutil.which("tshark") is None and "CI" not in os.environ, reason="no tshark to ask"
)
def test_tshark_finds_nothing_wrong_with_it(made):
    for name, labels in made.items():
        fields = ["ip.checksum.status", "tcp.len", "tcp.stream", "tcp.analysis.flags", "frame.len"]
        command = [
            "tshark",
            "-r",
            str(labels.with_name("trace.pcap")),
            "-o",
            "ip.check_checksum:TRUE",
        ]
        command += ["-d", "tcp.port==502,data", "-d", "tcp.port==1883,data", "-T", "fields"]
        command += [part for field in fields for part in ("-e", field)]
        lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        rows = [line.split("\t") for line in lines.splitlines()]
        sources = [line.split(",")[2] for line in labels.read_text().splitlines()[1:]]
        assert len(rows) == len(sources) > 20_000
        # Every header has its checksum, and no segment is out of place.
        assert {row[0] for row in rows} == {"1"}, name
        assert {row[3] for row in rows} == {""}, name
        # A conversation is an attack or it is not.
        streams = {}
        for row, source in zip(rows, sources, strict=True):
            streams.setdefault(row[2], set()).add(source)
        assert all(len(of) == 1 for of in streams.values()), name
        # Messages are small: most of what carries payload has less than 160 bytes.
        sizes = sorted(int(row[1]) for row in rows if row[1] != "0")
        assert sizes[len(sizes) // 2] < 160, name
        attacks = {source for source in sources if source != name}
        assert len(attacks) >= 3, name
