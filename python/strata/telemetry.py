"""Telemetry stores as numpy arrays: the memory that `strata telemetry run` writes, mapped for
reading only, and asked for many keys at once.

    import strata.telemetry as telemetry

    store = telemetry.Store("/dev/shm/store")
    keys = telemetry.flow_keys(["10.0.0.1"], ["10.0.0.2"], [1024], [80], 6)
    values, found = store.values(keys)
    hops, known, whole = store.paths(keys)
    counts = store.counts(telemetry.address_keys(["10.0.0.1"]))

Keys are rows of bytes (uint8), all of one length. A store with generations is queried youngest
first; `store.generations()` says which there are, and `generation=` asks one of them only. What
lies where, and what may be torn while it is written, is in docs/formats/dta.md and
docs/telemetry.md.
"""

import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

U64 = np.uint64
_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_VALUE = 0xD1B54A32D192ED03
# What a chunk says of its path: hops, and three bits.
_HOPS, _CONTRADICTED, _MIXED, _LEN_KNOWN = 0x1F, 0x20, 0x40, 0x80
_LOW = U64(0xFFFFFFFF)
_HALF = U64(32)


class StoreError(RuntimeError):
    """The directory is not a telemetry store, or its version is not known."""


@dataclass(frozen=True)
class Generation:
    """A generation of a store, and when it filled: in ns since 1970."""

    index: int
    number: int
    begun_ns: int
    ended_ns: int | None


def _mix64(z):
    z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
    return z ^ (z >> U64(31))


def _add128(a, b):
    """Sums of pairs (low, high)."""
    low = a[0] + b[0]
    return low, a[1] + b[1] + (low < b[0]).astype(U64)


def _multiply128(a, b):
    """Products as pairs (low, high)."""
    a0, a1, b0, b1 = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    middle = a1 * b0 + (a0 * b0 >> _HALF)
    other = a0 * b1 + (middle & _LOW)
    high = a1 * b1 + (middle >> _HALF) + (other >> _HALF)
    return a * b, high


class Hasher:
    """The keyed hash of a store: of rows of bytes to 64 bits."""

    def __init__(self, seed: tuple[int, int]):
        state, turned = seed[0], (seed[1] << 32 | seed[1] >> 32) & _MASK
        states = [(state + n * _STEP & _MASK) ^ turned for n in range(1, 9)]
        self.k = _mix64(np.array(states, dtype=U64))

    def hash(self, keys: np.ndarray) -> np.ndarray:
        keys = _checked(keys)
        padded = np.zeros((len(keys), 40), dtype=np.uint8)
        padded[:, : keys.shape[1]] = keys
        w, k = padded.view("<u8").astype(U64), self.k
        total = _multiply128(w[:, 0] + k[0], np.full(len(keys), keys.shape[1], dtype=U64) + k[1])
        if keys.shape[1] != 4:
            total = _add128(total, _multiply128(w[:, 1] + k[2], w[:, 2] + k[3]))
            total = _add128(total, _multiply128(w[:, 3] + k[4], w[:, 4] + k[5]))
        low, high = total
        turned = high << U64(29) | high >> U64(35)
        return _mix64(low ^ turned ^ k[6] ^ k[7])

    def code(self, values: np.ndarray) -> np.ndarray:
        """g of the paper, of values that hops report; 2^32 is the blank."""
        return _mix64((values.astype(U64) ^ U64(_VALUE)) + self.k[7]) >> _HALF


def _checked(keys: np.ndarray) -> np.ndarray:
    keys = np.ascontiguousarray(keys, dtype=np.uint8)
    if keys.ndim != 2 or not 1 <= keys.shape[1] <= 40:
        raise ValueError("keys are rows of 1 to 40 bytes")
    return keys


def _place(hashes: np.ndarray, copy: int, places: int) -> np.ndarray:
    """Where copy `copy` of each key is, below `places`."""
    if copy:
        hashes = _mix64(hashes + U64(copy * _STEP & _MASK))
    return ((hashes >> _HALF) * U64(places) >> _HALF).astype(np.int64)


class Store:
    """A telemetry store. Its arrays change while a collector writes it."""

    def __init__(self, store: str | Path):
        store = Path(store)
        try:
            self.manifest = json.loads((store / "telemetry.json").read_text())
        except FileNotFoundError:
            raise StoreError(
                f"{store}: no telemetry store: `strata telemetry run -o` makes one"
            ) from None
        if self.manifest["format"] != "strata-telemetry" or self.manifest["version"] != 3:
            raise StoreError(f"{store}: not a telemetry store of version 3")
        self.parameters, places = self.manifest["parameters"], self.manifest["places"]
        first, second = (int(half, 16) for half in self.manifest["seed"])
        self.hasher = Hasher((first, second))
        self.memory = np.memmap(store / "memory", np.uint8, "r", shape=(places["bytes"],))

        def part(at: int, count: int, size: int) -> np.ndarray:
            return self.memory[at : at + count * size].reshape(count, size)

        several = places.get("generations")
        offsets = [0]
        self._table = None
        if several:
            count = self.parameters["generations"]
            offsets = [index * several["stride"] for index in range(count)]
            self._table = part(several["table_at"], count, 64).view("<u8")
        words = part(places["dictionary_at"], places["dictionary_words"], 8)
        self._dictionary = words.view("<u8")[:, 0]
        # A generation's each; a store without generations has one of each.
        self.slots = [
            part(
                places["key_write_at"] + offset,
                places["key_write_slots"],
                places["key_write_slot_bytes"],
            )
            for offset in offsets
        ]
        self.chunks = [
            part(
                places["postcarding_at"] + offset,
                places["postcarding_chunks"],
                places["postcarding_chunk_bytes"],
            ).view("<u4")
            for offset in offsets
        ]
        self.batches = part(
            places["append_at"],
            self.parameters["lists"] * places["append_slots"],
            places["append_slot_bytes"],
        ).reshape(self.parameters["lists"], places["append_slots"], -1)
        self.counters = [
            part(places["key_increment_at"] + offset, places["key_increment_counters"], 8).view(
                "=u8"
            )[:, 0]
            for offset in offsets
        ]
        self._codes: tuple[int, np.ndarray, np.ndarray] | None = None

    def generations(self) -> list[Generation]:
        """Those that hold something, youngest first; none if the store has no generations. One is
        cleared once in a period: who finds the same list before and after a query knows that the
        answer is of it."""
        if self._table is None:
            return []
        rows = [(int(row[0]), int(row[1]), index) for index, row in enumerate(self._table)]
        rows = sorted((row for row in rows if row[0] > 0), reverse=True)
        ends = [None, *(begun for _, begun, _ in rows)]
        return [
            Generation(index, number, begun, end)
            for (number, begun, index), end in zip(rows, ends, strict=False)
        ]

    def _indices(self, generation: Generation | None) -> list[int]:
        if generation is not None:
            return [generation.index]
        if self._table is None:
            return [0]
        return [one.index for one in self.generations()]

    def values(
        self,
        keys: np.ndarray,
        redundancy: int = 4,
        agree: int = 1,
        generation: Generation | None = None,
    ):
        """The values of keys: rows of bytes, and whether each is known. A value is known if more
        of the copies that are left hold it than any other, and at least `agree` do; of several
        generations, the youngest that knows it answers."""
        if not 1 <= redundancy <= 4:
            raise ValueError("a redundancy is 1 to 4")
        keys = _checked(keys)
        values = np.zeros((len(keys), self.parameters["data_bytes"]), dtype=np.uint8)
        found = np.zeros(len(keys), dtype=bool)
        for index in self._indices(generation):
            more, known = self._values_in(self.slots[index], keys, redundancy, agree)
            fresh = known & ~found
            values[fresh] = more[fresh]
            found |= known
        return values, found

    def _values_in(self, slots: np.ndarray, keys: np.ndarray, redundancy: int, agree: int):
        hashes = self.hasher.hash(keys)
        checksums = U64(1) + ((hashes & _LOW) * U64(0xFFFFFFFF) >> _HALF)
        places = np.stack([_place(hashes, n, len(slots)) for n in range(redundancy)])
        read = slots[places]
        there = read[..., :4].copy().view("<u4")[..., 0] == checksums
        # One slot is one vote, even if two copies fell there.
        for n in range(1, redundancy):
            there[n] &= (places[:n] != places[n]).all(axis=0)
        data = read[..., 4 : 4 + self.parameters["data_bytes"]]
        same = (data[:, None] == data[None]).all(axis=-1) & there[None] & there[:, None]
        votes = same.sum(axis=1)
        best = votes.argmax(axis=0)
        every = np.arange(len(hashes))
        value, most = data[best, every], votes[best, every]
        # A copy with another value and as many votes: undecided.
        differing = there & ~same[best, :, every].T
        tied = (differing & (votes == most)).any(axis=0)
        return value, (most >= max(agree, 1)) & ~tied

    def counts(self, keys: np.ndarray, generation: Generation | None = None) -> np.ndarray:
        """What was added for keys, in all generations together: an upper bound."""
        hashes = self.hasher.hash(keys)
        total = np.zeros(len(hashes), dtype=U64)
        for index in self._indices(generation):
            counters = self.counters[index]
            copies = range(self.parameters["redundancy"])
            places = [_place(hashes, n, len(counters)) for n in copies]
            total += np.min([counters[place] for place in places], axis=0)
        return total

    def _decode(self, codes: np.ndarray) -> np.ndarray:
        """What codes stand for: a value, -1 for a blank, -2 for none or several."""
        # Large values are written down as they are first reported.
        written = int(np.count_nonzero(self._dictionary))
        if self._codes is None or self._codes[0] != written:
            values = np.arange(self.parameters["value_max"] + 2, dtype=np.int64)
            blank = len(values) - 1
            large = (self._dictionary[:written] & _LOW).astype(np.int64)
            values = np.concatenate([values, np.unique(large)])
            words = values.astype(U64)
            words[blank] = 1 << 32
            values[blank] = -1
            known = self.hasher.code(words)
            order = np.argsort(known)
            known, values = known[order], values[order]
            several = np.zeros(len(known), dtype=bool)
            several[1:] |= known[1:] == known[:-1]
            several[:-1] |= known[1:] == known[:-1]
            values[several] = -2
            self._codes = written, known, values
        _, known, values = self._codes
        index = np.minimum(np.searchsorted(known, codes), len(known) - 1)
        return np.where(known[index] == codes, values[index], -2)

    def paths(self, keys: np.ndarray, generation: Generation | None = None):
        """What the hops of flows reported: rows of numbers, -1 where a hop said nothing; whether
        anything is known of each path; and whether these are all hops of one packet, which nodes
        that report for themselves (INT-XD) do not say. Of several generations, the youngest that
        knows a path answers."""
        keys = _checked(keys)
        found = np.full((len(keys), self.parameters["hops"]), -1, dtype=np.int64)
        known = np.zeros(len(keys), dtype=bool)
        whole = np.zeros(len(keys), dtype=bool)
        for index in self._indices(generation):
            more, there, all_there = self._paths_in(self.chunks[index], keys)
            fresh = there & ~known
            found[fresh], whole[fresh] = more[fresh], all_there[fresh]
            known |= there
        return found, known, whole

    def _paths_in(self, chunks: np.ndarray, keys: np.ndarray):
        hashes, hops = self.hasher.hash(keys), self.parameters["hops"]
        found = np.full((len(hashes), hops), -1, dtype=np.int64)
        extents = np.zeros(len(hashes), dtype=U64)
        known = np.zeros(len(hashes), dtype=bool)
        torn = np.zeros(len(hashes), dtype=bool)
        sums = [_mix64(hashes ^ U64(_STEP * (hop + 1) & _MASK)) & _LOW for hop in range(hops + 1)]
        for n in range(self.parameters["redundancy"]):
            chunk = chunks[_place(hashes, n, len(chunks))]
            path = np.empty((len(hashes), hops), dtype=np.int64)
            for hop in range(hops):
                path[:, hop] = self._decode(chunk[:, hop] ^ sums[hop])
            extent = chunk[:, hops] ^ sums[hops]
            valid = (path != -2).all(axis=1) & (path >= 0).any(axis=1) & (extent <= 0xFF)
            both = known & valid
            torn |= both & ((path >= 0) & (found >= 0) & (path != found)).any(axis=1)
            differing = both & ((path != found).any(axis=1) | (extent != extents))
            extents[differing] |= U64(_MIXED)
            blank = both[:, None] & (found < 0)
            found[blank] = path[blank]
            fresh = valid & ~known
            found[fresh], extents[fresh] = path[fresh], extent[fresh]
            known |= valid
        known &= ~torn
        found[~known] = -1
        there = np.arange(hops) < (extents & U64(_HOPS))[:, None]
        certain = extents & U64(_LEN_KNOWN | _MIXED | _CONTRADICTED) == _LEN_KNOWN
        kept = (extents & U64(_HOPS)) <= hops
        return found, known, known & certain & kept & ((found >= 0) == there).all(axis=1)

    def list(self, name: str | int) -> np.ndarray:
        """The entries of a list that are there, oldest first: rows of bytes."""
        numbers = {named["name"]: named["number"] for named in self.manifest["lists"]}
        number = numbers[name] if isinstance(name, str) else name
        batches, size = self.batches[number], self.parameters["entry_bytes"]
        # From the last word of each to the first, since they are written the other way round.
        last = batches[:, -8:].copy().view("<u8")[:, 0]
        entries = batches[:, 16 : 16 + self.parameters["batch"] * size].copy()
        counts = batches[:, 8:16].copy().view("<u8")[:, 0]
        first = batches[:, :8].copy().view("<u8")[:, 0]
        whole = np.flatnonzero((first == last) & (last > 0))
        whole = whole[np.argsort(last[whole])]
        counts = (counts[whole] >> U64(56)).astype(np.int64)
        entries = entries[whole].reshape(len(whole), self.parameters["batch"], size)
        held = np.arange(self.parameters["batch"]) < counts[:, None]
        return entries[held]


def address_keys(addresses) -> np.ndarray:
    """Keys of addresses, all of one family."""
    packed = [ipaddress.ip_address(address).packed for address in addresses]
    return np.array([list(address) for address in packed], dtype=np.uint8)


def node_keys(nodes) -> np.ndarray:
    """Keys of nodes."""
    return np.asarray(nodes, dtype=">u4").reshape(-1, 1).view(np.uint8)


def flow_keys(sources, destinations, source_ports, destination_ports, protocol) -> np.ndarray:
    """Keys of flows, all of one family. The protocol is a number, or one for each."""
    source, destination = address_keys(sources), address_keys(destinations)

    def port(ports) -> np.ndarray:
        return np.asarray(ports, dtype=">u2").reshape(-1, 1).view(np.uint8)

    protocols = np.broadcast_to(np.asarray(protocol, dtype=np.uint8), (len(source),))
    parts = [source, destination, port(source_ports), port(destination_ports)]
    return np.hstack([*parts, protocols.reshape(-1, 1)])


def flow_at_keys(nodes, flows: np.ndarray) -> np.ndarray:
    """Keys of flows at nodes, of the keys of flows."""
    flows = _checked(flows)
    six = flows.shape[1] == 37
    return np.hstack([node_keys(nodes), flows[:, :36] if six else flows])
