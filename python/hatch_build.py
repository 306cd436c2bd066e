"""Puts the programs into the wheel, as `make wheel` builds it: those in the folder of the variable
STRATA_BUILT, with the SBOM in the file of STRATA_SBOM. Nothing is compiled. Without the variable,
the wheel has the package alone.

The platform in the wheel's name is that of the programs: manylinux with the newest version of the C
library that one of them names (PEP 600), or linux if one loads libraries that such a system may not
have.

Source: the ELF specification, version 1.2; the Linux Standard Base, symbol versioning.
"""

import os
import re
import struct
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Those that have to be there, and those that are taken if they are.
PROGRAMS = (
    "strata",
    "strata-telemetry",
    "strata-stream",
    "strata-vectors",
    "strata-fleet",
    "strata-models",
)
OPTIONAL = ("strata-sql",)

# Libraries that every system of manylinux has (PEP 600), of those that programs in Rust load.
LIBRARIES = {
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}
MACHINES = {62: "x86_64", 183: "aarch64"}

# Types of headers and of dynamic entries.
PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_STRTAB, DT_VERNEED, DT_VERNEEDNUM = 1, 5, 0x6FFFFFFE, 0x6FFFFFFF


class Program:
    """What an ELF file of 64 bits, little-endian, says that it needs."""

    def __init__(self, file: Path):
        self.content = file.read_bytes()
        if self.content[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{file}: not a program of a 64-bit Linux")
        try:
            self._read()
        except (struct.error, ValueError, IndexError) as error:
            raise ValueError(f"{file}: a damaged ELF file: {error}") from error

    def _read(self) -> None:
        (self.machine,) = self._at("H", 18)
        (headers,) = self._at("Q", 32)
        size, count = self._at("HH", 54)
        self.loaded, dynamic = [], None
        for number in range(count):
            kind, _, offset, address, _, length = self._at("IIQQQQ", headers + number * size)
            if kind == PT_LOAD:
                self.loaded.append((address, offset, length))
            if kind == PT_DYNAMIC:
                dynamic = (offset, length)
        self.libraries: list[str] = []
        self.versions: list[str] = []
        if dynamic is None:
            return
        offset, length = dynamic
        entries = [self._at("QQ", offset + at) for at in range(0, length - 15, 16)]
        values = dict(entries)
        strings = self._place(values[DT_STRTAB])
        needed = [value for tag, value in entries if tag == DT_NEEDED]
        self.libraries = [self._string(strings + value) for value in needed]
        at = self._place(values[DT_VERNEED]) if DT_VERNEED in values else 0
        for _ in range(values.get(DT_VERNEEDNUM, 0)):
            _, count, _, first, following = self._at("HHIII", at)
            version = at + first
            for _ in range(count):
                _, _, _, name, next_version = self._at("IHHII", version)
                self.versions.append(self._string(strings + name))
                version += next_version
            if following == 0:
                break
            at += following

    def _at(self, form: str, offset: int) -> tuple:
        return struct.unpack_from("<" + form, self.content, offset)

    def _place(self, address: int) -> int:
        """Where in the file what is loaded at an address is."""
        for start, offset, length in self.loaded:
            if start <= address < start + length:
                return address - start + offset
        raise ValueError(f"nothing is loaded at {address:#x}")

    def _string(self, offset: int) -> str:
        return self.content[offset : self.content.index(b"\0", offset)].decode()


def of_libc(version: str) -> tuple[int, ...] | None:
    """The version of the C library with a symbol version; none for those that are no number."""
    # Relocations in a shorter form, which the loader has had since then.
    if version == "GLIBC_ABI_DT_RELR":
        return (2, 36)
    found = re.fullmatch(r"GLIBC_(\d+(?:\.\d+)+)", version)
    return tuple(map(int, found[1].split("."))) if found else None


def platform(programs: list[Path]) -> tuple[str, str | None]:
    """The platform of programs in the name of a wheel, and the reason if it is not manylinux."""
    read = {file.name: Program(file) for file in programs}
    machines = {program.machine for program in read.values()}
    if len(machines) != 1 or not machines <= MACHINES.keys():
        raise ValueError(f"{programs[0].parent}: programs for other machines, or for several")
    machine = MACHINES[machines.pop()]
    others = {
        f"{name} loads {library}"
        for name, program in read.items()
        for library in program.libraries
        if library not in LIBRARIES
    }
    if others:
        return f"linux_{machine}", ", ".join(sorted(others))
    named = {version for program in read.values() for version in program.versions}
    newest = max((known for version in named if (known := of_libc(version))), default=None)
    if newest is None:
        return f"linux_{machine}", "no program names a version of the C library"
    return f"manylinux_{newest[0]}_{newest[1]}_{machine}", None


class Programs(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict) -> None:
        built = os.environ.get("STRATA_BUILT")
        if not built or version == "editable":
            return
        missing = [name for name in PROGRAMS if not os.access(Path(built, name), os.X_OK)]
        if missing:
            raise FileNotFoundError(
                f"{built}: no {', '.join(missing)}: build them first, with make build"
            )
        programs = [Path(built, name).resolve() for name in PROGRAMS]
        programs += [path.resolve() for name in OPTIONAL if (path := Path(built, name)).exists()]
        tag, reason = platform(programs)
        if reason:
            self.app.display_warning(f"a wheel for {tag} only: {reason}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"
        build_data["shared_scripts"] = {str(program): program.name for program in programs}
        if sbom := os.environ.get("STRATA_SBOM"):
            build_data["sbom_files"].append(sbom)
