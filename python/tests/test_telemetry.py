"""Telemetry stores, made here word by word as docs/formats/dta.md describes them."""

import json

import numpy as np
import pytest

from strata import telemetry

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
SEED = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
SLOTS, CHUNKS, BATCH_SLOTS, COUNTERS = 1000, 300, 4, 500
PARAMETERS = {
    "memory_bytes": 1 << 20,
    "data_bytes": 4,
    "hops": 5,
    "value_max": 1000,
    "lists": 2,
    "batch": 2,
    "entry_bytes": 6,
    "redundancy": 2,
}


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


class Naive:
    """The same with Python's integers."""

    def __init__(self):
        state, turned = SEED[0], (SEED[1] << 32 | SEED[1] >> 32) & MASK
        self.k = []
        for _ in range(8):
            state = (state + STEP) & MASK
            self.k.append(mix(state ^ turned))

    def hash(self, key):
        padded = key + bytes(40 - len(key))
        w = [int.from_bytes(padded[at : at + 8], "little") for at in range(0, 40, 8)]
        k = self.k

        def product(a, i, b, j):
            return ((a + k[i]) & MASK) * ((b + k[j]) & MASK)

        total = product(w[0], 0, len(key), 1)
        if len(key) != 4:
            total += product(w[1], 2, w[2], 3) + product(w[3], 4, w[4], 5)
        low, high = total & MASK, total >> 64 & MASK
        return mix(low ^ (high << 29 | high >> 35) & MASK ^ k[6] ^ k[7])

    def place(self, h, n, places):
        return ((mix(h + n * STEP & MASK) if n else h) >> 32) * places >> 32

    def checksum(self, h):
        return 1 + ((h & 0xFFFFFFFF) * 0xFFFFFFFF >> 32)

    def code(self, value):
        word = 1 << 32 if value is None else value
        return mix(((word ^ 0xD1B54A32D192ED03) + self.k[7]) & MASK) >> 32


class World:
    """A store that is being written."""

    def __init__(self, path):
        at = {"candidates_at": 0, "key_write_at": 64, "key_write_slots": SLOTS}
        at |= {"key_write_slot_bytes": 8, "postcarding_at": 64 + SLOTS * 8}
        at |= {"postcarding_chunks": CHUNKS, "postcarding_chunk_bytes": 32}
        at["append_at"] = at["postcarding_at"] + CHUNKS * 32
        at |= {"append_slots": BATCH_SLOTS, "append_slot_bytes": 16 + 16 + 8}
        at["key_increment_at"] = at["append_at"] + 2 * BATCH_SLOTS * 40
        at["key_increment_counters"] = COUNTERS
        at["dictionary_at"] = at["key_increment_at"] + COUNTERS * 8
        at["dictionary_words"] = 4
        at["bytes"] = at["dictionary_at"] + 4 * 8
        manifest = {
            "format": "strata-telemetry",
            "version": 3,
            "seed": [f"{half:016x}" for half in SEED],
            "parameters": PARAMETERS,
            "places": at,
            "lists": [{"number": 1, "name": "drops", "entries": "node-event"}],
        }
        self.path, self.at, self.naive = path, at, Naive()
        (path / "telemetry.json").write_text(json.dumps(manifest))
        self.memory = bytearray(at["bytes"])

    def put(self, at, data):
        self.memory[at : at + len(data)] = data

    def value(self, key, data, copies=range(2), wrong=0):
        h = self.naive.hash(key)
        for n in copies:
            slot = self.naive.place(h, n, SLOTS)
            checksum = (self.naive.checksum(h) ^ wrong).to_bytes(4, "little")
            self.put(self.at["key_write_at"] + slot * 8, checksum + data)

    def path_of(self, key, values, extent=0x83, copies=range(2)):
        h = self.naive.hash(key)
        chunk = b""
        for hop, value in enumerate(values):
            sums = mix(h ^ STEP * (hop + 1) & MASK) & 0xFFFFFFFF
            chunk += (sums ^ self.naive.code(value)).to_bytes(4, "little")
        sums = mix(h ^ STEP * 6 & MASK) & 0xFFFFFFFF
        chunk += (sums ^ extent).to_bytes(4, "little")
        for n in copies:
            place = self.naive.place(h, n, CHUNKS)
            self.put(self.at["postcarding_at"] + place * 32, chunk)

    def add(self, key, count):
        h = self.naive.hash(key)
        for place in {self.naive.place(h, n, COUNTERS) for n in range(2)}:
            at = self.at["key_increment_at"] + place * 8
            before = int.from_bytes(self.memory[at : at + 8], "little")
            self.put(at, (before + count).to_bytes(8, "little"))

    def batch(self, number, list_number, before, entries):
        slot = list_number * BATCH_SLOTS + number % BATCH_SLOTS
        header = (before | len(entries) << 56).to_bytes(8, "little")
        tag = (number + 1).to_bytes(8, "little")
        body = b"".join(entries).ljust(16, b"\0")
        self.put(self.at["append_at"] + slot * 40, tag + header + body + tag)

    def store(self):
        (self.path / "memory").write_bytes(self.memory)
        return telemetry.Store(self.path)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.mark.parametrize("length", [1, 4, 8, 9, 13, 16, 17, 37, 40])
def test_hashes_are_those_of_the_format(length):
    rows = np.random.default_rng(length).integers(0, 256, (50, length), dtype=np.uint8)
    naive = Naive()
    expected = [naive.hash(bytes(row)) for row in rows]
    assert telemetry.Hasher(SEED).hash(rows).tolist() == expected


def test_values_are_found_by_the_most_votes(world):
    keys = telemetry.address_keys([f"10.0.0.{n}" for n in range(40)])
    for n, key in enumerate(keys[:30]):
        world.value(bytes(key), n.to_bytes(4, "big"))
    # A copy of another value: one against one.
    world.value(bytes(keys[29]), b"\xff" * 4, copies=[1])
    # Another key's checksum.
    world.value(bytes(keys[28]), b"\xee" * 4, wrong=1)
    values, found = world.store().values(keys, redundancy=2)
    # Of the others, few were overwritten: 30 keys in 1,000 slots.
    assert found[:28].sum() >= 26 and not found[28:].any()
    numbers = values.view(">u4")[:, 0]
    assert (numbers[:28][found[:28]] == np.arange(28)[found[:28]]).all()
    _, agreed = world.store().values(keys, redundancy=2, agree=2)
    assert (agreed <= found).all() and agreed.sum() >= 20
    with pytest.raises(ValueError):
        world.store().values(keys, redundancy=5)


def test_paths_have_the_values_of_their_hops_or_none(world):
    ports = list(range(1000, 1009))
    flows = telemetry.flow_keys(["10.0.0.1"] * 9, ["10.0.0.2"] * 9, ports, [80] * 9, 6)
    assert bytes(flows[0]).hex() == "0a0000010a00000203e8005006"
    full, three = [1, 22, 333, 1000, 0], [7, 8, 9, None, None]
    world.path_of(bytes(flows[0]), full, extent=0x85)
    world.path_of(bytes(flows[1]), [7, None, 9, None, None])
    world.path_of(bytes(flows[2]), [1001, 1, 1, 1, 1])
    # A known length; at least three; of several packets; with a hop twice; of eight hops.
    for flow, extent in zip(flows[4:8], [0x83, 0x03, 0xC3, 0xA3], strict=True):
        world.path_of(bytes(flow), three, extent=extent)
    world.path_of(bytes(flows[8]), full, extent=0x88)
    # In the dictionary, and in one copy a hop that the other does not know.
    large = 0x0A0A0001
    world.put(world.at["dictionary_at"], (1 << 32 | large).to_bytes(8, "little"))
    world.path_of(bytes(flows[3]), [large, 2, 3, None, None], copies=[0])
    world.path_of(bytes(flows[3]), [large, None, 3, None, None], copies=[1])
    hops, known, whole = world.store().paths(flows)
    assert known.tolist() == [True, True, False] + [True] * 6
    assert whole.tolist() == [True] + [False] * 3 + [True] + [False] * 4
    assert hops.tolist()[:2] == [full, [7, -1, 9, -1, -1]]
    assert hops.tolist()[3:5] == [[large, 2, 3, -1, -1], [7, 8, 9, -1, -1]]
    at_node = telemetry.flow_at_keys([7], flows[:1])
    assert bytes(at_node[0]).hex() == "00000007" + "0a0000010a00000203e8005006"


def test_counts_are_never_too_small(world):
    keys = telemetry.node_keys(range(200))
    for n, key in enumerate(keys):
        world.add(bytes(key), n)
    counts = world.store().counts(keys)
    assert (counts >= np.arange(200)).all()
    assert (counts == np.arange(200)).sum() > 100


def test_generations_are_asked_youngest_first(world, tmp_path):
    first, second, third = keys = telemetry.address_keys(["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    flow = telemetry.flow_keys(["10.0.0.1"], ["10.0.0.2"], [1000], [80], 6)
    # The older generation, at the front of its shares.
    world.value(bytes(first), b"old1")
    world.value(bytes(second), b"old2")
    world.add(bytes(first), 5)
    world.path_of(bytes(flow[0]), [1, 2, 3, None, None])
    stores = bytes(world.memory)
    stride = len(stores)
    # The younger one, as far behind as the whole of the older.
    world.memory = bytearray(stride)
    world.value(bytes(first), b"new1")
    world.add(bytes(first), 7)
    world.add(bytes(third), 1)
    younger = bytes(world.memory)
    table = b""
    for number, begun in [(8, 1000), (9, 2000), (0, 0)]:
        table += number.to_bytes(8, "little") + begun.to_bytes(8, "little") + bytes(48)
    world.memory = bytearray(stores + younger + stores + table)
    manifest = json.loads((tmp_path / "telemetry.json").read_text())
    manifest["parameters"] |= {"generations": 3, "generation_period_s": 1}
    manifest["places"]["generations"] = {"table_at": 3 * stride, "stride": stride}
    manifest["places"]["bytes"] = len(world.memory)
    (tmp_path / "telemetry.json").write_text(json.dumps(manifest))
    store = world.store()
    ages = store.generations()
    assert [(one.number, one.begun_ns, one.ended_ns) for one in ages] == [
        (9, 2000, None),
        (8, 1000, 2000),
    ]
    values, found = store.values(keys, redundancy=2)
    assert found.tolist() == [True, True, False]
    assert [bytes(value) for value in values[:2]] == [b"new1", b"old2"]
    assert store.values(keys, generation=ages[1])[0][0].tobytes() == b"old1"
    assert store.counts(keys).tolist() == [12, 0, 1]
    assert store.counts(keys, generation=ages[0]).tolist() == [7, 0, 1]
    hops, known, whole = store.paths(flow)
    assert known.tolist() == whole.tolist() == [True] and hops[0].tolist() == [1, 2, 3, -1, -1]
    assert not store.paths(flow, generation=ages[0])[1][0]


def test_lists_are_in_order_without_what_is_half_written(world):
    def entry(n):
        return n.to_bytes(6, "big")

    for number in range(6):
        world.batch(number, 1, number * 2, [entry(number * 2), entry(number * 2 + 1)])
    world.batch(6, 1, 12, [entry(12)])
    # Its end is still that of an older batch.
    world.put(world.at["append_at"] + (BATCH_SLOTS + 3) * 40 + 32, b"\7")
    entries = world.store().list("drops")
    assert [int.from_bytes(bytes(row), "big") for row in entries] == [8, 9, 10, 11, 12]
    assert len(world.store().list(0)) == 0


def test_what_is_not_a_store_is_refused(tmp_path):
    with pytest.raises(telemetry.StoreError, match="no telemetry store"):
        telemetry.Store(tmp_path)
    (tmp_path / "telemetry.json").write_text('{"format": "x", "version": 1}')
    with pytest.raises(telemetry.StoreError, match="version 3"):
        telemetry.Store(tmp_path)
