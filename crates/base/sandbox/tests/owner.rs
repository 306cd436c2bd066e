//! What changes owner, and what is replaced: only what Strata made.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail loudly too")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::process::geteuid;
use strata_sandbox::{
    Group, Owner, OwnerError, SocketError, SocketFile, User, make_log_dir, make_secret_dir,
};

const NOBODY: u32 = 65_534;
const MANIFEST: &str = "manifest.json";
const ENTRIES: [&str; 3] = [MANIFEST, "blocks", "lock"];

fn nobody() -> Owner {
    Owner {
        user: Some(User::named("nobody").unwrap()),
        group: None,
    }
}

fn group() -> Owner {
    Owner {
        user: None,
        group: Some(Group::named("nogroup").unwrap()),
    }
}

/// Owner, group and mode, without following a link.
fn seen(path: &Path) -> (u32, u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A directory as `mkdir` makes it, whatever the umask of the test.
fn directory(path: &Path) {
    fs::create_dir(path).unwrap();
    set_mode(path, 0o755);
}

/// Changing owners needs root, as do the tests with interfaces.
fn is_root() -> bool {
    geteuid().is_root()
}

#[test]
fn other_files_than_sockets_are_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), "precious").unwrap();
    directory(&at("directory"));
    symlink(at("file"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    let _listener = UnixListener::bind(at("socket")).unwrap();
    symlink(at("socket"), at("link-to-socket")).unwrap();
    for name in ["file", "directory", "link", "dangling", "link-to-socket"] {
        let before = seen(&at(name));
        let refused = SocketFile::bind(&at(name), &Owner::default()).unwrap_err();
        assert!(
            matches!(refused, SocketError::NotASocket(_)),
            "{name}: {refused}"
        );
        assert_eq!(seen(&at(name)), before, "{name}");
    }
    assert_eq!(fs::read(at("file")).unwrap(), b"precious");
    assert!(!at("nowhere").exists());
    // The attempts leave nothing behind.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 6);
}

#[test]
fn a_socket_that_is_listened_on_stays_and_a_left_over_one_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let listener = UnixListener::bind(&path).unwrap();
    // Also with a full queue, where a connection would wait.
    let mut waiting = Vec::new();
    loop {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
        let refused = SocketFile::bind(&path, &Owner::default()).unwrap_err();
        assert!(matches!(refused, SocketError::InUse(_)), "{refused}");
        if connect(&socket, &address).is_err() {
            break;
        }
        waiting.push(socket);
        // The queue holds 4,096 at most; each attempt is one more in it.
        assert!(waiting.len() < 8192);
    }
    drop((waiting, listener));
    let socket = SocketFile::bind(&path, &Owner::default()).unwrap();
    assert_eq!(seen(&path).2, 0o600);
    UnixStream::connect(&path).unwrap();
    let again = SocketFile::bind(&path, &Owner::default()).unwrap_err();
    assert!(matches!(again, SocketError::InUse(_)), "{again}");
    drop(socket);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_socket_that_took_the_place_of_ours_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let socket = SocketFile::bind(&path, &Owner::default()).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another's").unwrap();
    drop(socket);
    assert_eq!(fs::read(&path).unwrap(), b"another's");
}

#[test]
fn only_the_socket_and_a_directory_made_for_it_change_owner() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o755);
    let other = dir.path().join("other");
    fs::write(&other, "").unwrap();
    let before = (seen(dir.path()), seen(&other));
    let socket = SocketFile::bind(&dir.path().join("control"), &nobody()).unwrap();
    assert_eq!((seen(dir.path()), seen(&other)), before);
    assert_eq!(seen(socket.path()), (NOBODY, NOBODY, 0o600));
    assert!(socket.own_dirs().is_none());

    let made = dir.path().join("run/strata");
    let own = SocketFile::bind_in_own_dir(&made, "record-1", &group()).unwrap();
    assert_eq!(seen(own.path()), (0, NOBODY, 0o660));
    let [own_dir, around] = own.own_dirs().unwrap();
    assert_eq!(seen(&own_dir), (0, NOBODY, 0o2750));
    assert_eq!((seen(&around).0, seen(&around).1), (0, 0));
    drop(own);
    assert!(!own_dir.exists() && made.exists());

    // The leftovers of a killed program are removed when the next one starts.
    let left = SocketFile::bind_in_own_dir(&made, "record-2", &nobody()).unwrap();
    let [left_dir, _] = left.own_dirs().unwrap();
    assert_eq!(seen(&left_dir), (NOBODY, NOBODY, 0o750));
    fs::remove_file(left.path()).unwrap();
    drop(UnixListener::bind(left.path()).unwrap());
    drop(left);
    assert!(left_dir.exists());
    let _next = SocketFile::bind_in_own_dir(&made, "record-3", &nobody()).unwrap();
    assert!(!left_dir.exists());
}

/// A log that root has recorded, in a directory to which others had no access.
fn log(dir: &Path) {
    directory(dir);
    directory(&dir.join("blocks"));
    for name in [MANIFEST, "lock", "blocks/r0001", "notes.txt"] {
        fs::write(dir.join(name), "").unwrap();
    }
}

#[test]
fn only_what_strata_made_in_a_log_changes_owner() {
    if !is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let secret = root.path().join("secret");
    fs::write(&secret, "").unwrap();
    set_mode(&secret, 0o600);
    let outside = root.path().join("outside");
    directory(&outside);
    let dir = root.path().join("log");
    log(&dir);
    fs::hard_link(&secret, dir.join("blocks/hard")).unwrap();
    symlink(&secret, dir.join("blocks/soft")).unwrap();
    symlink(&outside, dir.join("blocks/dir")).unwrap();
    let before = (seen(&secret), seen(&outside), seen(&dir.join("notes.txt")));
    make_log_dir(&dir, MANIFEST, &ENTRIES, &nobody()).unwrap();
    for name in ["", MANIFEST, "lock", "blocks", "blocks/r0001"] {
        assert_eq!(seen(&dir.join(name)).0, NOBODY, "{name}");
    }
    let after = (seen(&secret), seen(&outside), seen(&dir.join("notes.txt")));
    assert_eq!(after, before);

    // Its owner may now put anything into it: nothing in it changes owner any more.
    let planted = dir.join("blocks/planted");
    fs::write(&planted, "").unwrap();
    make_log_dir(&dir, MANIFEST, &ENTRIES, &nobody()).unwrap();
    assert_eq!(seen(&planted).0, 0);
}

#[test]
fn directories_of_others_keep_their_owner() {
    if !is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    // Not a log; a log that everyone could write to; a link to a log.
    directory(&at("empty"));
    log(&at("shared"));
    set_mode(&at("shared"), 0o777);
    log(&at("target"));
    symlink(at("target"), at("link")).unwrap();
    for name in ["empty", "shared"] {
        make_log_dir(&at(name), MANIFEST, &ENTRIES, &nobody()).unwrap();
        let refused = make_log_dir(&at(name), MANIFEST, &ENTRIES, &group()).unwrap_err();
        assert!(matches!(refused, OwnerError::NotOurs(_)), "{refused}");
        assert_eq!((seen(&at(name)).0, seen(&at(name)).1), (0, 0), "{name}");
    }
    let refused = make_log_dir(&at("link"), MANIFEST, &ENTRIES, &nobody()).unwrap_err();
    assert!(matches!(refused, OwnerError::Link(_)), "{refused}");
    for name in ["shared", "target"] {
        assert_eq!(seen(&at(name).join(MANIFEST)).0, 0, "{name}");
    }
}

#[test]
fn files_made_for_a_group_are_readable_by_it_alone() {
    if !is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let made = root.path().join("a/b");
    make_log_dir(&made, MANIFEST, &ENTRIES, &group()).unwrap();
    for dir in [&made, made.parent().unwrap()] {
        assert_eq!(seen(dir), (0, NOBODY, 0o2750));
    }
    // Files made in it later inherit the group, whichever user makes them.
    fs::write(made.join("later"), "").unwrap();
    assert_eq!(seen(&made.join("later")).1, NOBODY);
    let old = root.path().join("old");
    log(&old);
    make_log_dir(&old, MANIFEST, &ENTRIES, &group()).unwrap();
    assert_eq!(seen(&old.join("blocks")), (0, NOBODY, 0o2750));
    assert_eq!(seen(&old.join("blocks/r0001")), (0, NOBODY, 0o640));
    assert_eq!(seen(&old.join("notes.txt")).1, 0);
}

/// Who can write to a directory can replace the keys in it.
#[test]
fn only_the_owner_can_write_to_a_directory_of_keys() {
    let root = tempfile::tempdir().unwrap();
    let made = root.path().join("a/b");
    make_secret_dir(&made).unwrap();
    assert_eq!(
        seen(&made).2 & 0o027,
        0,
        "others write neither to a new one"
    );
    let dir = root.path().join("keys");
    directory(&dir);
    for mode in [0o700, 0o750, 0o755, 0o711] {
        set_mode(&dir, mode);
        make_secret_dir(&dir).unwrap();
    }
    // Also with the sticky bit: what is not there yet is whose who makes it.
    for mode in [0o777, 0o1777, 0o775, 0o702] {
        set_mode(&dir, mode);
        let refused = make_secret_dir(&dir).unwrap_err();
        assert!(matches!(refused, OwnerError::Open { .. }), "{mode:o}");
        let refused = refused.to_string();
        assert!(
            refused.contains(&format!("(mode {mode:04o})")) && refused.contains("`chmod go-w /"),
            "{refused}"
        );
        let link = root.path().join(format!("link-{mode:o}"));
        symlink(&dir, &link).unwrap();
        assert!(make_secret_dir(&link).is_err(), "{mode:o}, by a link");
    }
    set_mode(&dir, 0o700);
    if is_root() {
        std::os::unix::fs::chown(&dir, Some(NOBODY), None).unwrap();
        let refused = make_secret_dir(&dir).unwrap_err().to_string();
        assert!(refused.contains("belongs to uid 65534, "), "{refused}");
    }
}
