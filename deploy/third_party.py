#!/usr/bin/env python3
"""Lists the packages that the programs contain: with their licences and the texts of these, and as
an SBOM in CycloneDX JSON. Needs cargo, and no network: the sources that were built are read.

    third_party.py OUTPUT PROGRAM ...

OUTPUT is a folder, which gets LICENSE-THIRD-PARTY and strata.cdx.json. PROGRAM is the name of a
program, such as strata or strata-sql. The packages are those that cargo builds the programs of: not
those of tests, build scripts and macros. The page's are those that page/src imports.
SOURCE_DATE_EPOCH sets the time of the SBOM.

Source: the CycloneDX specification, version 1.6; the purl specification.
"""

import datetime
import hashlib
import html
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.parse
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
# Packages of npm that the page imports, and the program contains.
PAGE_PACKAGES = ("preact", "uplot")
# A file with the terms of a package, which is not larger than this; libraries in C are one or two folders further down.
TERMS = re.compile(r"(licen[cs]e|copying|notice|copyright|unlicense)([-._].*)?", re.IGNORECASE)
TERMS_BYTES_MAX = 256 << 10
DEPTH_MAX = 3


def said(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{sys.argv[0]}: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def spdx(licence):
    """A licence as SPDX writes it: some packages have a slash for OR."""
    return re.sub(r"\s*/\s*", " OR ", licence)


def text_of(file):
    lines = file.read_bytes().decode(errors="replace").splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def terms_of(folder):
    """The texts of the files with a package's terms, by their name in the package."""
    texts = {}
    if not folder.is_dir():
        sys.exit(f"{sys.argv[0]}: {folder}: no such folder, which would have the terms of a package")
    for place, folders, files in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(folders) if depth + 1 < DEPTH_MAX else []
        for name in sorted(files):
            file = Path(place) / name
            if not TERMS.fullmatch(name):
                continue
            if file.stat().st_size > TERMS_BYTES_MAX:
                sys.exit(f"{sys.argv[0]}: {file}: more than {TERMS_BYTES_MAX} bytes of terms")
            texts[str(file.relative_to(folder))] = text_of(file)
    return texts


def rust_packages(programs):
    """The packages of programs, and the references of packages that each uses."""
    host = re.search(r"^host: (.+)$", said("rustc", "-vV"), re.MULTILINE)[1]
    found = said(
        CARGO, "metadata", "--locked", "--offline", "--format-version=1", f"--filter-platform={host}"
    )
    found = json.loads(found)
    packages = {package["id"]: package for package in found["packages"]}
    members = set(found["workspace_members"])
    uses = {
        node["id"]: [
            used["pkg"]
            for used in node["deps"]
            if any(kind["kind"] is None for kind in used["dep_kinds"])
        ]
        for node in found["resolve"]["nodes"]
    }
    of_program = {
        target["name"]: package
        for package in found["workspace_members"]
        for target in packages[package]["targets"]
        if "bin" in target["kind"]
    }
    unknown = [program for program in programs if program not in of_program]
    if unknown:
        sys.exit(f"{sys.argv[0]}: no such program: {', '.join(unknown)}")
    checksums = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(one["name"], one["version"]): one.get("checksum") for one in checksums}

    # Metadata has what any feature of the workspace and its tests needs; the tree has what these programs are built of.
    by_name = {f"{one['name']} v{one['version']}": package for package, one in packages.items()}
    chosen = [f"--package={packages[of_program[program]]['name']}" for program in programs]
    tree = said(
        CARGO, "tree", "--locked", "--offline", "--edges=normal,no-proc-macro", "--prefix=none", "--format={p}", *chosen
    )
    reached = {by_name[" ".join(line.split()[:2])] for line in tree.splitlines() if line}

    def reference(package):
        version = urllib.parse.quote(packages[package]["version"], safe="")
        return f"pkg:cargo/{packages[package]['name']}@{version}"

    listed = []
    for package in sorted(reached - members, key=reference):
        about = packages[package]
        if not about["license"]:
            sys.exit(f"{sys.argv[0]}: {about['name']} {about['version']} states no licence")
        listed.append(
            {
                "ref": reference(package),
                "name": about["name"],
                "version": about["version"],
                "licence": spdx(about["license"]),
                "url": about["repository"] or about["homepage"],
                "sha256": checksums.get((about["name"], about["version"])),
                "terms": terms_of(Path(about["manifest_path"]).parent),
            }
        )
    # What the own crates use is what Strata uses.
    graph = {one["ref"]: set() for one in listed}
    own = set()
    for package in reached:
        used = {reference(other) for other in reached.intersection(uses[package]) - members}
        (own if package in members else graph[reference(package)]).update(used)
    version = packages[of_program[programs[0]]]["version"]
    return version, listed, graph, own


def library_terms():
    """The notices of the standard library and of what it contains, as text, and the licences that
    they name. The compiler's package has them, and licences of other parts of it."""
    folder = Path(said("rustc", "--print", "sysroot").strip()) / "share/doc/rust"
    notices = folder / "COPYRIGHT-library.html"
    licences = sorted(folder.glob("licenses/*.txt"))
    if not notices.is_file() or not licences:
        sys.exit(f"{sys.argv[0]}: {folder}: no {notices.name} and licenses of the standard library")
    text = html.unescape(re.sub(r"<[^>]*>", "", text_of(notices)))
    text = re.sub(r"\n(?:[ \t]*\n){2,}", "\n\n", text).strip("\n")
    named = [file for file in licences if file.stem in text]
    return {notices.name: text, **{f"licenses/{file.name}": text_of(file) for file in named}}


def rust_library():
    """The standard library, which each program contains."""
    version = re.search(r"^release: (.+)$", said("rustc", "-vV"), re.MULTILINE)[1]
    return {
        "ref": f"pkg:generic/rust-std@{version}",
        "name": "rust-std",
        "version": version,
        "licence": "MIT OR Apache-2.0",
        "url": None,
        "sha256": None,
        "terms": library_terms(),
    }


def page_packages():
    """The packages of the page, if the programs were built with it."""
    if not (ROOT / "page/dist/index.html").exists():
        return []
    lock = json.loads((ROOT / "page/package-lock.json").read_text())["packages"]
    listed = []
    for name in PAGE_PACKAGES:
        about = lock[f"node_modules/{name}"]
        listed.append(
            {
                "ref": f"pkg:npm/{name}@{about['version']}",
                "name": name,
                "version": about["version"],
                "licence": spdx(about["license"]),
                "url": None,
                "sha256": None,
                "terms": terms_of(ROOT / "page/node_modules" / name),
            }
        )
    return listed


def as_text(version, listed):
    """The packages, and each text of terms once, with the packages that have it."""
    lines = [
        f"Strata {version} contains the packages below. Their licences are as the packages state them;",
        "the texts that they carry follow, each once.",
        "",
    ]
    for one in listed:
        url = f"  {one['url']}" if one["url"] else ""
        lines.append(f"{one['name']} {one['version']}: {one['licence']}{url}")
    without = [f"{one['name']} {one['version']}" for one in listed if not one["terms"]]
    if without:
        lines += ["", "These carry no text of their own: " + ", ".join(without) + "."]
    texts = {}
    for one in listed:
        for text in one["terms"].values():
            texts.setdefault(text, []).append(f"{one['name']} {one['version']}")
    for text, names in texts.items():
        lines += ["", "-" * 80, ", ".join(dict.fromkeys(names)) + ":", "", text]
    return "\n".join(lines) + "\n"


def as_component(one):
    component = {
        "type": "library",
        "bom-ref": one["ref"],
        "name": one["name"],
        "version": one["version"],
        "licenses": [{"expression": one["licence"]}],
        "purl": one["ref"],
    }
    if one["sha256"]:
        component["hashes"] = [{"alg": "SHA-256", "content": one["sha256"]}]
    if one["url"]:
        component["externalReferences"] = [{"type": "vcs", "url": one["url"]}]
    return component


def as_sbom(version, listed, graph, own, programs):
    at = os.environ.get("SOURCE_DATE_EPOCH")
    at = datetime.datetime.fromtimestamp(int(at), datetime.UTC) if at else datetime.datetime.now(datetime.UTC)
    strata = f"pkg:generic/strata@{version}"
    others = {one["ref"] for one in listed if one["ref"] not in graph}
    edges = {strata: own | others, **{ref: set() for ref in others}, **graph}
    components = [as_component(one) for one in listed]
    # The same packages of the same programs have the same number.
    content = json.dumps([strata, programs, components], sort_keys=True).encode()
    number = uuid.UUID(bytes=hashlib.sha256(content).digest()[:16], version=5)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        "metadata": {
            "timestamp": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": "deploy/third_party.py"}]},
            "component": {
                "type": "application",
                "bom-ref": strata,
                "name": "strata",
                "version": version,
                "licenses": [{"expression": "Apache-2.0 OR MIT"}],
                "purl": strata,
                "properties": [{"name": "strata:program", "value": one} for one in programs],
            },
        },
        "components": components,
        "dependencies": [
            {"ref": ref, "dependsOn": sorted(used)} for ref, used in sorted(edges.items())
        ],
    }


def main():
    if len(sys.argv) < 3:
        sys.exit("third_party.py OUTPUT PROGRAM ...")
    output, programs = Path(sys.argv[1]), sys.argv[2:]
    version, listed, graph, own = rust_packages(programs)
    listed += [rust_library(), *page_packages()]
    output.mkdir(parents=True, exist_ok=True)
    (output / "LICENSE-THIRD-PARTY").write_text(as_text(version, listed))
    sbom = as_sbom(version, listed, graph, own, programs)
    (output / "strata.cdx.json").write_text(json.dumps(sbom, indent=1) + "\n")


if __name__ == "__main__":
    main()
