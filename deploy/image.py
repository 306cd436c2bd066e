#!/usr/bin/env python3
"""Makes a container image of what was built: `make image`. Builds no program, and needs no container tools.

    image.py OUTPUT

From the environment:
  BUILT              the folder with the programs (target/release)
  PROGRAMS           their names; by default all that were built
  COMPRESSION        of the layers: gzip, or none
  SOURCE_DATE_EPOCH  the time of the image and of its files, seconds since 1970 (0)
  STRATA_COMMIT      the commit that the image names

OUTPUT is the folder of the image: one file, which is both an OCI layout and what `docker load` reads. The image has the
programs, the shared libraries that they load, from this machine, and nothing else that runs: no shell, no package
manager. The same programs and libraries make the same image, bit by bit.

Source: the OCI image format specification, version 1.1; `docker save`, version 1.2.
"""

import datetime
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Those that have to be there; strata-sql is added where it was built (make sql).
PROGRAMS = ("strata", "strata-telemetry", "strata-stream", "strata-vectors", "strata-fleet", "strata-models")
OPTIONAL = ("strata-sql",)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# Loaded by the C library when it looks up names of hosts and users, if it is older than 2.34.
NAME_SERVICES = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")
# Certificate authorities, where the programs look for them.
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
PASSWD = "root:x:0:0:root:/root:/sbin/nologin\nstrata:x:990:990:Strata traffic logger:/var/lib/strata:/sbin/nologin\n"
GROUP = "root:x:0:\nstrata:x:990:\n"
STRATA = 990
LAYOUT = '{"imageLayoutVersion":"1.0.0"}'


def fail(problem):
    sys.exit(f"{sys.argv[0]}: {problem}")


def said(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def libraries(program):
    """The shared libraries that a program loads, by the paths at which it looks for them."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    if "not a dynamic executable" in done.stdout + done.stderr or "statically linked" in done.stdout:
        return set()
    if done.returncode != 0 or "not found" in done.stdout:
        fail(f"ldd {program}: {done.stdout.strip()} {done.stderr.strip()}")
    # The kernel's own, linux-vdso, has no path.
    found = set(re.findall(r"(?:=> |^\s)(/\S+) \(0x", done.stdout, re.MULTILINE))
    if not found:
        fail(f"ldd {program}: no library in {done.stdout.strip()!r}")
    return found


def terms(library):
    """The file with the terms of a library, as Debian's packages have it; `None` elsewhere."""
    if not shutil.which("dpkg-query"):
        return None
    for path in (library, str(Path(library).resolve()), str(Path(library).resolve()).removeprefix("/usr")):
        found = subprocess.run(["dpkg-query", "-S", path], capture_output=True, text=True, check=False)
        if found.returncode == 0:
            file = Path("/usr/share/doc") / re.split("[:,]", found.stdout)[0] / "copyright"
            return file if file.is_file() else None
    return None


class Layer:
    """A tar archive with files of the image."""

    def __init__(self, epoch):
        self.epoch = epoch
        self.tree = {}

    def add(self, path, content=None, mode=0o755, owner=0):
        """A directory, or with content (bytes, or the path of a file) a file."""
        for parent in list(Path(path).parents)[-2::-1]:
            self.tree.setdefault(str(parent), (None, 0o755, 0))
        self.tree[str(path)] = (content, mode, owner)

    def write(self, file):
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for path, (content, mode, owner) in sorted(self.tree.items()):
                entry = tarfile.TarInfo(path.lstrip("/"))
                entry.mode, entry.mtime, entry.uid, entry.gid = mode, self.epoch, owner, owner
                if content is None:
                    entry.type = tarfile.DIRTYPE
                    tar.addfile(entry)
                    continue
                source = open(content, "rb") if isinstance(content, Path) else io.BytesIO(content)
                with source:
                    entry.size = source.seek(0, io.SEEK_END)
                    source.seek(0)
                    tar.addfile(entry, source)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def place(descriptor):
    """The path of a blob in the image's file."""
    return f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"


class Blobs:
    """The contents of the image, by their digests."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)

    def put(self, file, kind):
        """Takes a file, and returns its descriptor."""
        number, size = digest(file), file.stat().st_size
        file.rename(self.folder / number)
        return {"mediaType": kind, "digest": f"sha256:{number}", "size": size}

    def put_json(self, value, kind):
        made = self.folder / "made"
        made.write_text(json.dumps(value, separators=(",", ":"), sort_keys=True))
        return self.put(made, kind)

    def put_layer(self, layer, compression):
        """The descriptor of a layer, and the digest of its archive before compression."""
        made, packed = self.folder / "made", self.folder / "packed"
        with open(made, "wb") as file:
            layer.write(file)
        plain = f"sha256:{digest(made)}"
        kind = "application/vnd.oci.image.layer.v1.tar"
        if compression == "none":
            return self.put(made, kind), plain
        with open(made, "rb") as source, open(packed, "wb") as file:
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as target:
                shutil.copyfileobj(source, target, 1 << 20)
        made.unlink()
        return self.put(packed, f"{kind}+gzip"), plain


def remark(text):
    print(f"{sys.argv[0]}: {text}", file=sys.stderr)


def layer_of_libraries(built, programs, epoch):
    """Libraries, and the files that they and the programs look for."""
    layer = Layer(epoch)
    needed = set().union(*(libraries(built / program) for program in programs))
    for library in sorted(needed):
        if Path(library).name != "libc.so.6":
            continue
        services = (Path(library).with_name(name) for name in NAME_SERVICES)
        needed |= {str(service) for service in services if service.exists()}
    without = []
    for library in sorted(needed):
        layer.add(library, Path(library).resolve())
        file = terms(library)
        if file is None:
            without.append(library)
        else:
            layer.add(file, file, 0o644)
    if without:
        remark(f"no licence text found of {', '.join(without)}: add it before you hand the image on")
    if AUTHORITIES.is_file():
        layer.add(AUTHORITIES, AUTHORITIES.resolve(), 0o644)
    else:
        remark(f"{AUTHORITIES}: not there: the image knows no certificate authorities")
    layer.add("/etc/passwd", PASSWD.encode(), 0o644)
    layer.add("/etc/group", GROUP.encode(), 0o644)
    # Container runtimes write their own.
    layer.add("/etc/hosts", b"127.0.0.1 localhost\n::1 localhost\n", 0o644)
    layer.add("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n", 0o644)
    layer.add("/tmp", mode=0o1777)
    layer.add("/var/lib/strata", mode=0o750, owner=STRATA)
    layer.add("/run/strata", owner=STRATA)
    return layer


def layer_of_programs(built, programs, epoch):
    layer = Layer(epoch)
    for program in programs:
        layer.add(f"/usr/bin/{program}", built / program)
    layer.add("/etc/strata/strata.toml", said(built / "strata", "config", "init").encode(), 0o644)
    documents = Path("/usr/share/doc/strata")
    for licence in ("LICENSE-APACHE", "LICENSE-MIT"):
        layer.add(documents / licence, HERE.parent / licence, 0o644)
    with tempfile.TemporaryDirectory() as made:
        same = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
        said(sys.executable, HERE / "third_party.py", made, *programs, env=same)
        for file in sorted(Path(made).iterdir()):
            layer.add(documents / file.name, file.read_bytes(), 0o644)
    return layer


def write_image(output, blobs, index, docker):
    """One file, in an order that depends on nothing but the contents."""
    files = {
        "oci-layout": LAYOUT.encode(),
        "index.json": json.dumps(index, separators=(",", ":"), sort_keys=True).encode(),
        "manifest.json": json.dumps(docker, separators=(",", ":"), sort_keys=True).encode(),
    }
    archive = Layer(0)
    for name, content in files.items():
        archive.add(name, content, 0o644)
    for blob in sorted(blobs.folder.iterdir()):
        archive.add(f"blobs/sha256/{blob.name}", blob, 0o644)
    made = output.with_name(f".{output.name}.part")
    with open(made, "wb") as file:
        archive.write(file)
    made.rename(output)


def main():
    if len(sys.argv) != 2:
        sys.exit("image.py OUTPUT")
    output = Path(sys.argv[1])
    built = Path(os.environ.get("BUILT") or HERE.parent / "target/release")
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    compression = os.environ.get("COMPRESSION") or "gzip"
    if compression not in ("gzip", "none"):
        fail(f"COMPRESSION={compression}: gzip or none")
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None:
        fail(f"{platform.machine()}: no image is made for this machine")
    programs = (os.environ.get("PROGRAMS") or "").split()
    programs = programs or [*PROGRAMS, *(name for name in OPTIONAL if (built / name).exists())]
    if "strata" not in programs:
        fail("PROGRAMS: strata has to be among them, which runs the others")
    for program in programs:
        if not (built / program).is_file():
            fail(f"{built / program}: not there: build it first, with make build")
    version = said(built / "strata", "-V").split()[1]

    output.mkdir(parents=True, exist_ok=True)
    file = output / f"strata-{version}-{architecture}.oci.tar"
    with tempfile.TemporaryDirectory(dir=output) as scratch:
        blobs = Blobs(Path(scratch) / "blobs")
        layers = [
            blobs.put_layer(layer(built, programs, epoch), compression)
            for layer in (layer_of_libraries, layer_of_programs)
        ]
        created = datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        labels = {
            "org.opencontainers.image.title": "strata",
            "org.opencontainers.image.description": "Network traffic logger",
            "org.opencontainers.image.version": version,
            "org.opencontainers.image.licenses": "Apache-2.0 OR MIT",
            "org.opencontainers.image.revision": os.environ.get("STRATA_COMMIT", ""),
        }
        config = {
            "created": created,
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Entrypoint": ["/usr/bin/strata"],
                "Cmd": ["--help"],
                "Env": ["PATH=/usr/bin"],
                "WorkingDir": "/var/lib/strata",
                "Volumes": {"/var/lib/strata": {}},
                "Labels": {name: text for name, text in labels.items() if text},
            },
            "rootfs": {"type": "layers", "diff_ids": [plain for _, plain in layers]},
            "history": [
                {"created": created, "created_by": "deploy/image.py: libraries"},
                {"created": created, "created_by": "deploy/image.py: programs"},
            ],
        }
        config = blobs.put_json(config, "application/vnd.oci.image.config.v1+json")
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": [layer for layer, _ in layers],
        }
        manifest = blobs.put_json(manifest, manifest["mediaType"])
        manifest["annotations"] = {
            "org.opencontainers.image.ref.name": version,
            "io.containerd.image.name": f"docker.io/library/strata:{version}",
        }
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [manifest],
        }
        docker = [
            {
                "Config": place(config),
                "RepoTags": [f"strata:{version}"],
                "Layers": [place(layer) for layer, _ in layers],
            }
        ]
        write_image(file, blobs, index, docker)
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
