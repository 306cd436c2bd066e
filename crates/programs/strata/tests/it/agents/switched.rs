//! An agent captures ports of Open vSwitch, whose datapath in user space sends packets anew: what crosses it is
//! exported once, as the kernel counts what comes in.
#![allow(clippy::print_stderr, reason = "it says why tests do not run")]

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use strata_testkit::{Namespace, may_use_kernel, workspace_root};

use super::bridge::{PORTS, expected, exported};
use crate::common::agents::{Running, until};
use crate::common::program::ok;

/// Debian's package, unpacked there (`make tools`): installed, it would start a switch.
fn unpacked() -> PathBuf {
    workspace_root().join("target/tools/openvswitch/usr")
}

/// Where its programs are.
fn path() -> OsString {
    let folders = ["bin", "sbin", "lib/openvswitch-switch"];
    let unpacked = folders.map(|folder| unpacked().join(folder));
    let path = env::var_os("PATH").unwrap();
    let all = unpacked.into_iter().chain(env::split_paths(&path));
    env::join_paths(all).unwrap()
}

/// Whether these tests can run.
fn has_open_vswitch() -> bool {
    let mut command = Command::new("ovs-vswitchd");
    let version = command.env("PATH", path()).arg("--version").output();
    let can = version.is_ok_and(|version| version.status.success());
    if !can {
        eprintln!("not run: Open vSwitch is not there (`make tools`)");
    }
    can && may_use_kernel("Open vSwitch in a network namespace")
}

fn schema() -> PathBuf {
    let of = |usr: &Path| usr.join("share/openvswitch/vswitch.ovsschema");
    let own = of(&unpacked());
    match own.exists() {
        true => own,
        false => of(Path::new("/usr")),
    }
}

/// Open vSwitch in a namespace.
struct OpenVSwitch {
    _database: Running,
    _switch: Running,
}

/// A bridge of Open vSwitch with three ports, each with a machine; further arguments of ovs-vsctl.
fn bridge(host: &Namespace, dir: &Path, more: &[&str]) -> OpenVSwitch {
    let path = path();
    let outside = |program: &str| {
        let mut command = Command::new(program);
        command.env("PATH", &path).env("OVS_RUNDIR", dir);
        command.stderr(Stdio::null());
        command
    };
    let inside = |program: &str| {
        let mut command = outside("ip");
        command.args(["netns", "exec", host.name(), program]);
        command
    };
    let database = dir.join("conf.db");
    let mut create = outside("ovsdb-tool");
    ok(create.arg("create").arg(&database).arg(schema()));
    let socket = dir.join("db.sock");
    let mut server = inside("ovsdb-server");
    server.arg(database);
    server.arg(format!("--remote=punix:{}", socket.display()));
    let server = Running(server.spawn().unwrap());
    until("a database", || socket.exists());
    let remote = format!("unix:{}", socket.display());
    let configure = |arguments: &[&str]| {
        let mut command = outside("ovs-vsctl");
        ok(command.args(["--db", &remote]).args(arguments));
    };
    configure(&["--no-wait", "init"]);
    let mut switch = inside("ovs-vswitchd");
    let switch = Running(switch.arg(&remote).spawn().unwrap());
    // It answers once it has made the bridge.
    let kind = ["set", "bridge", "br0", "datapath_type=netdev"];
    configure(&[&["add-br", "br0", "--"][..], &kind].concat());
    for (number, port) in PORTS.iter().enumerate() {
        host.pair(port, &format!("vm{number}"));
        configure(&["add-port", "br0", port]);
    }
    if !more.is_empty() {
        configure(more);
    }
    host.ip("link set br0 up");
    OpenVSwitch {
        _database: server,
        _switch: switch,
    }
}

/// As [`exported`], with such a bridge.
fn switched(
    name: &str,
    more: &[&str],
    options: &[&str],
) -> (Vec<(String, u16, usize)>, u64, String) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("db.sock").display().to_string();
    let options = [options, &["--ovsdb", &socket]].concat();
    let made = |host: &Namespace| bridge(host, dir.path(), more);
    let (all, [came, sent], said) = exported(name, made, "vm2", &options);
    let all = all
        .into_iter()
        .map(|((name, port), count)| (name, port, count));
    (all.collect(), came + sent, said)
}

fn total(all: &[(String, u16, usize)]) -> usize {
    all.iter().map(|(_, _, count)| count).sum()
}

#[test]
fn what_crosses_open_vswitch_is_exported_once() {
    if !has_open_vswitch() {
        return;
    }
    let (all, counted, said) = switched("st-ovs-1", &[], &["-i", "br?"]);
    assert_eq!(total(&all) as u64, counted, "{all:?}");
    let once = [("br0", 2003, 30), ("tap0", 2001, 200), ("tap1", 2002, 50)];
    let once = expected(&once)
        .into_iter()
        .map(|((name, port), count)| (name, port, count));
    assert_eq!(all, once.collect::<Vec<_>>());
    assert!(
        said.contains("cross Open vSwitch (br0) are exported where they enter"),
        "{said}"
    );
}

#[test]
fn what_may_enter_open_vswitch_elsewhere_is_exported_where_it_leaves() {
    if !has_open_vswitch() {
        return;
    }
    // This host's own interface is not captured.
    let (all, _, said) = switched("st-ovs-2", &[], &[]);
    assert_eq!(total(&all), 2 * 200 + 3 * 50 + 30, "{all:?}");
    for what in ["tap0, tap1, tap2) are exported twice", "not captured: br0"] {
        assert!(said.contains(what), "{said}");
    }
    let tunnel = ["add-port", "br0", "tun0", "--", "set", "interface", "tun0"];
    let tunnel = [&tunnel[..], &["type=vxlan", "options:remote_ip=10.9.9.9"]].concat();
    let (all, _, said) = switched("st-ovs-3", &tunnel, &["-i", "br?"]);
    assert!(total(&all) >= 2 * 200 + 4 * 50 + 2 * 30, "{all:?}");
    assert!(said.contains("not captured: tun0 (vxlan)"), "{said}");
}
