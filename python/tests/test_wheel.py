"""The wheel of `make wheel`, installed into a fresh environment without network."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("STRATA_DATA", ROOT.parent / "shared" / "data"))
CAPTURE = DATA / "labelled" / "cic2017-sqli" / "trace.pcap"


def hatch_build():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "python/hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def said(*command, **options):
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with links to the programs that a wheel needs, as `make test` builds them, or as
    they were built before."""
    names = hatch_build().PROGRAMS
    named = os.environ.get("BUILT")
    places = [ROOT / named] if named else [ROOT / "target/debug", ROOT / "target/release"]
    for place in places:
        if all((place / name).exists() for name in names):
            folder = tmp_path_factory.mktemp("built")
            for name in names:
                (folder / name).symlink_to(place / name)
            return folder
    assert "CI" not in os.environ, "CI has no programs"
    pytest.skip("the programs are not built")


@pytest.fixture(scope="module")
def wheel(built, tmp_path_factory):
    output = tmp_path_factory.mktemp("wheel")
    environment = {**os.environ, "BUILT": str(built), "PYTHON": sys.executable}
    said("sh", ROOT / "deploy/wheel.sh", output, env=environment)
    (made,) = output.iterdir()
    return made


def of_readelf(file):
    """The libraries of a program, and the newest version of the C library that it names."""
    libraries = re.findall(r"\(NEEDED\).*\[(.+)\]", said("readelf", "-dW", file))
    named = re.findall(r"Name: GLIBC_([0-9.]+)", said("readelf", "-VW", file))
    return set(libraries), max(tuple(map(int, one.split("."))) for one in named)


@pytest.mark.parametrize("file", ["/bin/ls", sys.executable])
def test_a_program_needs_what_readelf_says(file):
    program = hatch_build().Program(Path(file))
    libraries, newest = of_readelf(file)
    assert set(program.libraries) == libraries
    named = [one.removeprefix("GLIBC_") for one in program.versions if one.startswith("GLIBC_2")]
    assert max(tuple(map(int, one.split("."))) for one in named) == newest


def test_versions_of_the_c_library_are_numbers_or_known_words():
    of_libc = hatch_build().of_libc
    for version, known in {
        "GLIBC_2.2.5": (2, 2, 5),
        "GLIBC_2.34": (2, 34),
        "GLIBC_ABI_DT_RELR": (2, 36),
        "GLIBC_PRIVATE": None,
        "GCC_3.0": None,
    }.items():
        assert of_libc(version) == known


def test_what_is_no_program_is_an_error(tmp_path):
    content = Path("/bin/ls").read_bytes()
    file = tmp_path / "program"
    for part in [b"", b"#!/bin/sh\n", content[:30], content[:100], content[:5_000]]:
        file.write_bytes(part)
        with pytest.raises(ValueError, match=re.escape(str(file))):
            hatch_build().platform([file])


def test_a_wheel_has_a_platform_that_its_programs_run_on(built, wheel):
    needs = [of_readelf(program) for program in built.iterdir()]
    newest = max(version for _, version in needs)
    others = set().union(*(libraries for libraries, _ in needs)) - hatch_build().LIBRARIES
    machine = sysconfig.get_platform().split("-")[-1]
    tag = f"linux_{machine}" if others else f"manylinux_{newest[0]}_{newest[1]}_{machine}"
    assert wheel.name == f"strata-0.1.0-py3-none-{tag}.whl"
    with zipfile.ZipFile(wheel) as archive:
        (about,) = [name for name in archive.namelist() if name.endswith(".dist-info/WHEEL")]
        assert f"Tag: py3-none-{tag}\n" in archive.read(about).decode()


def test_a_wheel_lists_what_its_programs_contain(built, wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        (terms,) = [one for one in archive.namelist() if one.endswith("/LICENSE-THIRD-PARTY")]
        (sbom,) = [one for one in archive.namelist() if "/sboms/" in one]
        terms, sbom = archive.read(terms).decode(), json.loads(archive.read(sbom))
    # What the specification requires of a document and of a component (CycloneDX 1.6).
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    uuid = "[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert re.fullmatch(f"urn:uuid:{uuid}", sbom["serialNumber"])
    components = sbom["components"]
    assert all(one["type"] == "library" and one["name"] for one in components)
    references = [one["bom-ref"] for one in [sbom["metadata"]["component"], *components]]
    assert len(references) == len(set(references))
    of = {one["ref"]: one["dependsOn"] for one in sbom["dependencies"]}
    assert set(of) == set(references) and set().union(*of.values()) <= set(references)
    assert all(f"\n{one['name']} {one['version']}: " in terms for one in components)
    # Programs have the places of sources for their messages. Those that tests build have the
    # features that strata-sql needs, too.
    names = hatch_build().PROGRAMS + hatch_build().OPTIONAL
    said(sys.executable, ROOT / "deploy/third_party.py", tmp_path, *names)
    all_of_them = json.loads((tmp_path / "strata.cdx.json").read_text())["components"]
    listed = {f"{one['name']}-{one['version']}" for one in all_of_them}
    source = re.compile(rb"/registry/src/[^/\0]+/([\w.+-]+)/")
    for program in built.iterdir():
        contained = {one.decode() for one in source.findall(program.read_bytes())}
        assert len(contained) > 20 and contained <= listed, contained - listed
    assert "Permission is hereby granted, free of charge" in terms
    # Of what the standard library contains.
    assert "Copyright notices for The Rust Standard Library" in terms
    assert "UNICODE LICENSE V3" in terms
    without = [line for line in terms.splitlines() if line.startswith("These carry no text")]
    assert not any("rust-std" in line for line in without)


def test_a_wheel_gives_the_programs_and_the_package(built, wheel, tmp_path):
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    said(python, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", wheel)
    # What the package needs, from the environment of this test: only what a wheel does not have.
    (packages,) = (environment / "lib").glob("python*/site-packages")
    (packages / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")

    path = {**os.environ, "PATH": f"{environment}/bin:{os.environ['PATH']}"}
    for name in ("STRATA_PROGRAM", "PYTHONPATH"):
        path.pop(name, None)
    options = {"env": path, "cwd": tmp_path}
    program = environment / "bin" / "strata"
    assert said("strata", "--version", **options) == said(built / "strata", "--version")
    # Other programs are found beside it.
    assert "strata telemetry" in said("strata", "telemetry", "--help", **options)

    said("strata", "record", "-r", CAPTURE, "-o", "log", **options)
    said("strata", "compact", "log", **options)
    script = (
        "import strata, strata.log, strata.program\n"
        "rows = strata.log.connect('log').sql('SELECT count(*) FROM packets').fetchall()[0]\n"
        "print(strata.__file__, strata.program.find(), *rows, sep='\\n')\n"
    )
    package, found, packets = said(python, "-c", script, **options).splitlines()
    assert Path(package).is_relative_to(environment)
    assert Path(found) == program
    # The programs find the package of their environment, also if that is not on the path.
    path["PATH"] = "/usr/bin:/bin"
    path.pop("STRATA_PYTHON", None)
    words = [program, "publish", "log", "--catalog", "none://x", "--namespace", "site"]
    refused = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    assert refused.returncode != 0
    assert "cannot import the package" not in refused.stderr, refused.stderr
    told = said("capinfos", "-c", "-M", "-T", "-r", CAPTURE)
    assert packets == told.split()[-1]
