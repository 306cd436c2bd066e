//! `make install`, `make uninstall` and `make deb`, with the programs beside the one of these tests.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{PROGRAMS, built, ok};

const CONFIG: &str = "etc/strata/strata.toml";

pub(crate) fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

pub(crate) fn make(arguments: &[&str]) -> String {
    let mut command = Command::new("make");
    command.args(["--no-print-directory", "-C"]);
    command.arg(workspace_root()).args(arguments);
    command.arg(format!("BUILT={}", built().display()));
    ok(command.env_remove("MAKEFLAGS").env_remove("MAKELEVEL"))
}

/// Files and links below a directory, by their paths from there, with their modes.
fn files(root: &Path) -> BTreeMap<PathBuf, u32> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                left.push(path);
            } else {
                let below = path.strip_prefix(root).unwrap().to_owned();
                found.insert(below, meta.mode() & 0o777);
            }
        }
    }
    found
}

pub(crate) fn is_installed(tool: &str) -> bool {
    Command::new("which")
        .arg(tool)
        .output()
        .is_ok_and(|found| found.status.success())
}

#[test]
fn what_is_installed_is_whole_and_is_removed_again() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let into = format!("DESTDIR={}", root.display());
    make(&["install", &into]);
    let there = files(root);

    for program in PROGRAMS {
        let path = format!("usr/local/bin/{program}");
        assert_eq!(there.get(Path::new(&path)), Some(&0o755), "{path}");
    }
    let units = fs::read_dir(workspace_root().join("deploy")).unwrap();
    let units = units.map(|file| file.unwrap().file_name().into_string().unwrap());
    for unit in units.filter(|name| name.ends_with(".service")) {
        let path = root.join("usr/local/lib/systemd/system").join(&unit);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{unit}: {error}"));
        assert!(text.contains("=/usr/local/bin/strata "), "{text}");
        assert!(!text.contains("/usr/bin/strata"), "{text}");
    }
    for path in [
        CONFIG,
        "usr/local/lib/sysusers.d/strata.conf",
        "usr/local/lib/tmpfiles.d/strata.conf",
        "usr/local/share/man/man1/strata.1",
        "usr/local/share/man/man1/strata-gpv-run.1",
        "usr/local/share/man/man1/strata-controller-rollout-status.1",
        "usr/local/share/bash-completion/completions/strata",
        "usr/local/share/zsh/site-functions/_strata",
        "usr/local/share/fish/vendor_completions.d/strata.fish",
        "usr/local/share/doc/strata/strata.toml",
    ] {
        assert_eq!(there.get(Path::new(path)), Some(&0o644), "{path}");
    }
    let manual = |path: &PathBuf| path.file_name() == Some(OsStr::new("strata-manual"));
    assert!(!there.keys().any(manual), "it is for the build only");
    let link = root.join("usr/local/lib/wireshark/extcap/strata-extcap");
    let target = fs::read_link(link).unwrap();
    assert_eq!(target, Path::new("/usr/local/bin/strata"));

    pages_render(&root.join("usr/local/share/man/man1"));
    completions_parse(&root.join("usr/local/share"));
    let sysusers = root.join("usr/local/lib/sysusers.d/strata.conf");
    if is_installed("systemd-sysusers") {
        let mut command = Command::new("systemd-sysusers");
        let planned = ok(command.arg("--dry-run").arg(&sysusers));
        drop(planned);
    }

    // The file of somebody who has changed it is theirs.
    let config = root.join(CONFIG);
    fs::write(&config, "mode = ['log-all']\n").unwrap();
    make(&["install", &into]);
    make(&["uninstall", &into]);
    let left = files(root);
    assert_eq!(
        left.keys().collect::<Vec<_>>(),
        [Path::new(CONFIG)],
        "files are left"
    );
    fs::remove_file(&config).unwrap();
    make(&["install", &into]);
    make(&["uninstall", &into]);
    assert!(files(root).is_empty(), "{:?}", files(root));
}

/// groff has nothing to warn of, on any page.
fn pages_render(folder: &Path) {
    let pages = fs::read_dir(folder).unwrap();
    let pages: BTreeSet<PathBuf> = pages.map(|page| page.unwrap().path()).collect();
    assert!(pages.len() > 50, "{} pages", pages.len());
    let groff = is_installed("groff");
    assert!(
        groff || is_installed("man"),
        "neither groff nor man is installed"
    );
    for page in &pages {
        let mut command = match groff {
            true => Command::new("groff"),
            false => Command::new("man"),
        };
        match groff {
            true => command.args(["-k", "-man", "-Tutf8", "-ww", "-rLL=100n"]),
            false => command.args(["--warnings", "-l", "-Tutf8"]),
        };
        let shown = command.arg(page).output().unwrap();
        let heard = String::from_utf8_lossy(&shown.stderr);
        assert!(shown.status.success(), "{}: {heard}", page.display());
        assert!(heard.is_empty(), "{}: {heard}", page.display());
        assert!(shown.stdout.len() > 100, "{}: nothing", page.display());
    }
}

/// Shells read the scripts; bash also offers commands and options by them.
fn completions_parse(share: &Path) {
    let bash = share.join("bash-completion/completions/strata");
    let mut command = Command::new("bash");
    ok(command.arg("-n").arg(&bash));
    let program = "source \"$1\"; COMP_WORDS=(strata telemetry ru); COMP_CWORD=2; \
        _strata strata ru telemetry; echo \"${COMPREPLY[@]}\"; \
        COMP_WORDS=(strata record --look); COMP_CWORD=2; _strata strata --look record; \
        echo \"${COMPREPLY[@]}\"";
    let mut command = Command::new("bash");
    let offered = ok(command.args(["-c", program, "bash"]).arg(&bash));
    assert_eq!(offered, "run\n--look-back\n");
    for (shell, file) in [
        ("zsh", "zsh/site-functions/_strata"),
        ("fish", "fish/vendor_completions.d/strata.fish"),
    ] {
        if is_installed(shell) {
            ok(Command::new(shell).arg("-n").arg(share.join(file)));
        }
    }
}

#[test]
fn a_package_has_what_is_installed_and_its_program_runs() {
    if !is_installed("dpkg-deb") {
        eprintln!("not run, without dpkg-deb: the test of the package");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (out, root) = (dir.path().join("deb"), dir.path().join("root"));
    // Debug builds are large.
    make(&["deb", "COMPRESSION=none", &format!("DEB={}", out.display())]);
    let packages = fs::read_dir(&out).unwrap();
    let packages: Vec<PathBuf> = packages.map(|file| file.unwrap().path()).collect();
    let [package] = &packages[..] else {
        panic!("{packages:?}");
    };
    let field = |name: &str| ok(Command::new("dpkg-deb").arg("-f").arg(package).arg(name));
    assert_eq!(field("Package"), "strata\n");
    assert_eq!(field("Version"), concat!(env!("CARGO_PKG_VERSION"), "\n"));
    ok(Command::new("dpkg-deb").arg("-x").arg(package).arg(&root));
    let control = dir.path().join("control");
    ok(Command::new("dpkg-deb")
        .arg("-e")
        .arg(package)
        .arg(&control));
    let conffiles = fs::read_to_string(control.join("conffiles")).unwrap();
    assert_eq!(conffiles, format!("/{CONFIG}\n"));
    for script in ["postinst", "prerm", "postrm"] {
        ok(Command::new("sh").arg("-n").arg(control.join(script)));
    }

    // The files of `make install`, at the places of a package, as Debian packs them.
    let installed = tempfile::tempdir().unwrap();
    make(&[
        "install",
        "PREFIX=/usr",
        &format!("DESTDIR={}", installed.path().display()),
    ]);
    let name = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.strip_suffix(".gz").unwrap_or(name).to_owned()
    };
    let names = |of: &Path| -> BTreeSet<String> { files(of).keys().map(name).collect() };
    let mut wanted = names(installed.path());
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        assert!(wanted.remove(licence));
    }
    let packaged = [
        "copyright",
        "changelog",
        "LICENSE-THIRD-PARTY",
        "strata.cdx.json",
    ];
    wanted.extend(packaged.map(str::to_owned));
    assert_eq!(names(&root), wanted);
    for program in PROGRAMS {
        let path = Path::new("usr/bin").join(program);
        let same =
            fs::read(root.join(&path)).unwrap() == fs::read(installed.path().join(&path)).unwrap();
        assert!(same, "{program}");
    }

    let shown = ok(Command::new(root.join("usr/bin/strata")).arg("--version"));
    assert!(shown.contains("profile:"), "{shown}");
    let beside = ok(Command::new(root.join("usr/bin/strata")).args(["gpv", "--help"]));
    assert!(beside.contains("strata gpv"), "{beside}");
    let line = ok(Command::new(root.join("usr/bin/strata")).arg("-V"));
    assert_eq!(line.lines().count(), 1, "{line}");
}
