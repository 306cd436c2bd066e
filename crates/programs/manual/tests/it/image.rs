//! `make image`: read by the tools of others where they are installed, and run from its layers alone.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{PROGRAMS, built, install, ok};

/// An image with these programs, and its one file. Debug builds are large: they are not compressed.
fn image(dir: &Path, programs: &str) -> PathBuf {
    let out = format!("IMAGE={}", dir.display());
    let programs = format!("PROGRAMS={programs}");
    install::make(&["image", "COMPRESSION=none", &out, &programs]);
    let files = fs::read_dir(dir).unwrap();
    let files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    let [file] = &files[..] else {
        panic!("{files:?}");
    };
    file.clone()
}

fn unpack(archive: &Path, into: &Path) {
    fs::create_dir_all(into).unwrap();
    let mut tar = Command::new("tar");
    ok(tar.arg("-xf").arg(archive).arg("-C").arg(into));
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The file of a descriptor, which has the stated digest and size.
fn blob(image: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap();
    let number = digest.strip_prefix("sha256:").unwrap();
    let path = image.join("blobs/sha256").join(number);
    let counted = ok(Command::new("sha256sum").arg(&path));
    assert!(counted.starts_with(number), "{counted}");
    let size = fs::metadata(&path).unwrap().len();
    assert_eq!(descriptor["size"], size, "{}", path.display());
    path
}

/// The packets of a capture as tcpdump prints them.
fn shown(capture: &Path) -> String {
    let mut tcpdump = Command::new("tcpdump");
    ok(tcpdump.args(["-n", "-tt", "-e", "-r"]).arg(capture))
}

#[test]
fn an_image_has_all_that_its_program_needs() {
    let dir = tempfile::tempdir().unwrap();
    let file = image(&dir.path().join("image"), "strata");
    if install::is_installed("skopeo") {
        let inspect = |kind: &str| {
            let mut skopeo = Command::new("skopeo");
            let said = ok(skopeo
                .arg("inspect")
                .arg(format!("{kind}:{}", file.display())));
            let said: Value = serde_json::from_str(&said).unwrap();
            said["Labels"]["org.opencontainers.image.version"].clone()
        };
        assert_eq!(inspect("oci-archive"), env!("CARGO_PKG_VERSION"));
        assert_eq!(inspect("docker-archive"), env!("CARGO_PKG_VERSION"));
    }

    // As the OCI specification has it: index, manifest, configuration, layers.
    let (layout, root) = (dir.path().join("layout"), dir.path().join("root"));
    unpack(&file, &layout);
    assert_eq!(
        json(&layout.join("oci-layout"))["imageLayoutVersion"],
        "1.0.0"
    );
    let index = json(&layout.join("index.json"));
    let manifest = json(&blob(&layout, &index["manifests"][0]));
    let config = json(&blob(&layout, &manifest["config"]));
    let layers = manifest["layers"].as_array().unwrap();
    let plain = config["rootfs"]["diff_ids"].as_array().unwrap();
    assert_eq!(layers.len(), plain.len());
    for (layer, plain) in layers.iter().zip(plain) {
        assert_eq!(layer["digest"], *plain, "it is not compressed");
        unpack(&blob(&layout, layer), &root);
    }
    let entry = config["config"]["Entrypoint"].as_array().unwrap();
    let entry: Vec<&str> = entry.iter().map(|word| word.as_str().unwrap()).collect();

    // Nothing of this machine but its kernel.
    let inside = |words: &[&str]| {
        let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
        let mut command = match is_root {
            true => Command::new("chroot"),
            false => Command::new("unshare"),
        };
        if !is_root {
            command.args(["--map-root-user", "chroot"]);
        }
        ok(command.arg(&root).args(&entry).args(words))
    };
    let version = inside(&["-V"]);
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    inside(&[
        "generate",
        "-o",
        "/tmp/trace.pcap",
        "-c",
        "2000",
        "--ipv6",
        "20",
    ]);
    let log = [
        "-o",
        "/var/lib/strata/log",
        "--mode",
        "log-all",
        "--detail",
        "none",
    ];
    inside(&[&["record", "-r", "/tmp/trace.pcap"], &log[..]].concat());
    inside(&["export", "/var/lib/strata/log", "-w", "/tmp/out.pcap"]);
    let [given, got] = ["trace.pcap", "out.pcap"].map(|name| shown(&root.join("tmp").join(name)));
    assert_eq!(given.lines().count(), 2_000);
    assert!(given == got, "the export has other packets");
}

/// The same programs make the same image; without a choice, all that are installed are in it.
#[test]
fn an_image_has_all_programs_and_is_reproducible() {
    let dir = tempfile::tempdir().unwrap();
    // Small ones: what is packed is no question of size.
    let small = dir.path().join("built");
    fs::create_dir(&small).unwrap();
    let strata = built().join("strata");
    let script = format!("#!/bin/sh\nexec {} \"$@\"\n", strata.display());
    for program in PROGRAMS {
        let path = small.join(program);
        fs::write(&path, &script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let made = [1, 2].map(|number| {
        let out = dir.path().join(number.to_string());
        let mut command = Command::new("python3");
        command.arg(install::workspace_root().join("deploy/image.py"));
        ok(command
            .arg(&out)
            .env("BUILT", &small)
            .env_remove("PROGRAMS"));
        let mut files = fs::read_dir(&out).unwrap();
        fs::read(files.next().unwrap().unwrap().path()).unwrap()
    });
    assert!(made[0] == made[1], "two images of the same differ");
    let layout = dir.path().join("layout");
    let file = dir.path().join("again.tar");
    fs::write(&file, &made[0]).unwrap();
    unpack(&file, &layout);
    let manifest = json(&blob(
        &layout,
        &json(&layout.join("index.json"))["manifests"][0],
    ));
    let layers = manifest["layers"].as_array().unwrap();
    let mut listed = String::new();
    for layer in layers {
        listed += &ok(Command::new("tar").arg("-tzf").arg(blob(&layout, layer)));
    }
    let has = |path: &str| listed.lines().any(|line| line == path);
    for program in PROGRAMS {
        assert!(has(&format!("usr/bin/{program}")), "{listed}");
    }
    assert!(has("usr/share/doc/strata/LICENSE-THIRD-PARTY") && has("etc/strata/strata.toml"));
}
