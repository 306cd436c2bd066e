"""`strata lake find`: a flow in the tables of many sensors, by the index above their files; and
where its packets are."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from . import lake, lake_index
from .lake_files import LakeError, all_files, replaces
from .lake_index import READERS
from .lake_reads import SPANS, Chosen, Reads, as_text, open_counted, planned, time_of
from .lake_upkeep import counted, part_of, tables

# Names of protocols in filters.
PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}


@dataclass
class Row:
    """A row of `flows`, and where its packets are."""

    sensor: str
    hour: str
    retention: str
    # The file of `flows`.
    file: str
    row: dict[str, Any]
    # The file of the log in which the packets are; None of a file that an erasure wrote.
    packets_file: str | None
    # The file with their payload, and the number of packets with kept payload; None if unknown.
    payload_file: str | None
    payload_packets: int | None
    # A command that exports the packets from the sensor's log.
    export: str | None


@dataclass
class Found:
    """A flow in the tables, or several."""

    community_ids: list[str]
    rows: list[Row]
    # Files of `flows` of these times and sensors, and their bytes.
    files: int
    files_bytes: int
    # Those of them that no index file covers: they were searched themselves.
    uncovered: int
    index: Reads
    flows: Reads
    packets: Reads

    @property
    def bytes_read(self) -> int:
        return self.index.bytes + self.flows.bytes + self.packets.bytes


def find(
    catalog_name: str,
    namespace: str,
    community_ids: list[str],
    *,
    warehouse: str | None = None,
    from_us: int | None = None,
    to_us: int | None = None,
    sensor: str | None = None,
) -> Found:
    """The rows of `flows` with these Community IDs, by time; of times from `from_us` on and before
    `to_us`, in µs since 1970. Raises `LakeError`, or an error of the catalog."""
    keys = {lake_index.key_of(one) for one in community_ids}
    opened = lake.catalog(catalog_name, warehouse)
    flows = next((one for one in tables(opened, namespace) if one.name()[-1] == "flows"), None)
    if flows is None:
        raise LakeError(f"{namespace}: no table of flows in this namespace: publish a log first")
    chosen = Chosen(from_us, to_us, sensor)
    files = {
        (part_of(file)[0], file.file_path, file.file_size_in_bytes): file
        for file in planned(flows, chosen)
    }
    of_index, of_flows, of_packets = Reads(), Reads(), Reads()
    covered: set[tuple[str, str, int]] | None = None
    groups: dict[tuple[str, str, int], set[int]] = {}
    index = lake_index.table(opened, namespace, create=False)
    days = {lake_index.day_of(part_of(file)[1]) for file in files.values()}
    periods = days | {lake_index.month_of(day) for day in days}
    # Key by key: a file is covered if it is for each of them, and pieces of the index may be lost.
    for key in sorted(keys):
        of_key: set[tuple[str, str, int]] = set()
        for covers, places in _looked_up(index, periods, {key}, of_index):
            of_key |= {one.file for one in covers}
            for number, group in places:
                groups.setdefault(covers[number].file, set()).add(group)
        covered = of_key if covered is None else covered & of_key
    covered = covered or set()

    def rows_of(item: tuple[tuple[str, str, int], DataFile]) -> list[Row]:
        identity, file = item
        if identity in covered and identity not in groups:
            return []
        of_file = sorted(groups[identity]) if identity in covered else None
        return _rows(flows, file, of_file, community_ids, chosen, of_flows)

    with ThreadPoolExecutor(READERS) as readers:
        rows = [row for of in readers.map(rows_of, files.items()) for row in of]
        list(readers.map(lambda row: _find_payload(flows, row, of_packets), rows))
    rows.sort(key=lambda row: (str(row.row.get("first_time", row.row.get("last_time"))), row.file))
    return Found(
        community_ids,
        rows,
        len(files),
        sum(file.file_size_in_bytes for file in files.values()),
        len(files.keys() - covered),
        of_index,
        of_flows,
        of_packets,
    )


def _looked_up(
    index: Table | None, periods: set[str], keys: set[int], reads: Reads
) -> Iterator[tuple[list[lake_index.Covered], set[tuple[int, int]]]]:
    """The files that index files of these periods cover, and the places with the keys."""
    if index is None:
        return
    wanted = []
    for file in all_files(index):
        low, high = lake_index.keys_of_file(file)
        of_file = {key for key in keys if low <= key <= high}
        if of_file and str(file.partition[0]) in periods:
            wanted.append((file, of_file))

    def of(item: tuple[DataFile, set[int]]) -> Any:
        file, of_file = item
        try:
            with open_counted(index.io, file.file_path, reads) as parquet:
                return lake_index.covers(parquet), lake_index.look_up(parquet, of_file)
        except LakeError:
            # Lost or damaged: what it covered is searched itself.
            return [], set()

    with ThreadPoolExecutor(READERS) as readers:
        yield from readers.map(of, wanted)


def _rows(
    flows: Table,
    file: DataFile,
    groups: list[int] | None,
    community_ids: list[str],
    chosen: Chosen,
    reads: Reads,
) -> list[Row]:
    """The rows of a file with the IDs; `None` for `groups`: all of the file's row groups."""
    found = []
    with open_counted(flows.io, file.file_path, reads) as parquet:
        if lake_index.ID not in parquet.schema_arrow.names:
            return []
        for group in range(parquet.num_row_groups) if groups is None else groups:
            ids = parquet.read_row_group(group, columns=[lake_index.ID])[lake_index.ID]
            at = pc.indices_nonzero(pc.is_in(ids, pa.array(community_ids)))
            if len(at):
                found.append(parquet.read_row_group(group).take(at))
    if not found:
        return []
    there = pa.concat_tables(found)
    rows = there.to_pylist()
    first, last = (name if name in there.column_names else "last_time" for name in SPANS["flows"])
    start = None if chosen.from_us is None else time_of(chosen.from_us)
    end = None if chosen.to_us is None else time_of(chosen.to_us)
    return [
        _row(file, row)
        for row in rows
        if (start is None or row[last] >= start) and (end is None or row[first] < end)
    ]


def _row(file: DataFile, row: dict[str, Any]) -> Row:
    url = file.file_path
    packets = payload = export = None
    log, _, within = url.rpartition("/flows/")
    if replaces(url) is None and log:
        packets = f"{log}/packets/{within}"
        payload = f"{log}/payload/{within.removesuffix('.parquet')}.pcapng.gz"
        if log.startswith("file://"):
            export = _export(log.removeprefix("file://"), row)
    return Row(*part_of(file), url, row, packets, payload, None, export)


def _find_payload(flows: Table, one: Row, reads: Reads) -> None:
    """Counts the packets of a row of flows whose payload was kept."""
    group, first, rows = (one.row.get(name) for name in ("row_group", "first_row", "rows"))
    if one.packets_file is None or group is None or first is None or rows is None:
        return
    try:
        with open_counted(flows.io, one.packets_file, reads) as parquet:
            kept = parquet.read_row_group(group, columns=["payload_bytes"])["payload_bytes"]
    except LakeError:
        # It may be deleted, until the next publication; the row of flows is found all the same.
        return
    one.payload_packets = pc.sum(pc.greater(kept.slice(first, rows), 0)).as_py() or 0
    if not one.payload_packets:
        one.payload_file = None


def _export(log: str, row: dict[str, Any]) -> str | None:
    """The command that exports the packets of a row of flows from its log."""
    names = ("src", "dst", "src_port", "dst_port", "first_time", "last_time")
    source, target, source_port, target_port, first, last = (row.get(name) for name in names)
    protocol = PROTOCOLS.get(row.get("protocol") or 0)
    if None in (source, target, source_port, target_port, first, last) or protocol is None:
        return None
    ends = [(source, source_port, target, target_port), (target, target_port, source, source_port)]
    either = " or ".join(
        f"(src host {a} and src port {b} and dst host {c} and dst port {d})" for a, b, c, d in ends
    )
    # --to is exclusive, and the remaining nanoseconds are in another column.
    since, until = f"{first:%Y-%m-%dT%H:%M:%S.%fZ}", last + timedelta(microseconds=1)
    return (
        f"strata export {_quoted(log)} -w - --from {since} --to {until:%Y-%m-%dT%H:%M:%S.%fZ} "
        f"'{protocol} and ({either})'"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def printed(found: Found, as_json: bool) -> str:
    """The rows and where their packets are, for people or as JSON."""
    if as_json:
        of_index, of_flows, of_packets = (
            {"files": one.files, "bytes": one.bytes, "requests": one.requests}
            for one in (found.index, found.flows, found.packets)
        )
        whole = {
            "community_ids": found.community_ids,
            "rows": [asdict(row) for row in found.rows],
            "files": found.files,
            "files_bytes": found.files_bytes,
            "uncovered": found.uncovered,
            "index": of_index,
            "flows": of_flows,
            "packets": of_packets,
        }
        return json.dumps(whole, default=as_text)
    lines = []
    for one in found.rows:
        row = one.row
        packets = (row.get("packets") or 0) + (row.get("reverse_packets") or 0)
        size = (row.get("wire_bytes") or 0) + (row.get("reverse_wire_bytes") or 0)
        lines.append(
            f"{one.sensor} {one.hour} {one.retention}: {packets:,} packets, {size:,} bytes on the "
            f"wire, {row.get('logged_bytes') or 0:,} bytes kept, from {row.get('first_time')} to "
            f"{row.get('last_time')}"
        )
        lines.append(f"  flows    {one.file}")
        if one.packets_file is None:
            lines.append("  a host was erased from this file: the log of the sensor has the rest")
            continue
        lines.append(f"  packets  {one.packets_file}")
        if one.payload_file is None:
            lines.append("  payload  none was kept")
        else:
            of = "" if one.payload_packets is None else f", of {one.payload_packets:,} packets"
            lines.append(f"  payload  {one.payload_file}{of}")
        if one.export is not None:
            lines.append(f"  on {one.sensor}: {one.export}")
    share = 100 * found.bytes_read / found.files_bytes if found.files_bytes else 0.0
    sensors = len({one.sensor for one in found.rows})
    read = [
        f"{of.bytes:,} in {counted(of.files, 'file')} {what}"
        for of, what in (
            (found.index, "of the index"),
            (found.flows, f"of flows, of {found.files:,}"),
            (found.packets, "of packets"),
        )
    ]
    lines.append(
        f"{counted(len(found.rows), 'row')} of flows, of {counted(sensors, 'sensor')}; read "
        f"{found.bytes_read:,} bytes: {'; '.join(read)}: {share:.2f} % of the bytes of flows"
    )
    if found.uncovered:
        lines.append(
            f"{found.uncovered:,} files are not in the index, and were searched themselves: "
            "`strata lake expire` adds them"
        )
    return "\n".join(lines)
