//! Processes of real sockets in a network namespace, compared with `ss` and `/proc`.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use strata_processes::{Found, Process, Processes, Side, of_comment, push_comment};
use strata_testkit::{Namespace, may_use_kernel};
use strata_wire::LinkType;
use strata_wire::pcapng::options;

/// A program in Python that is told, line by line, what to evaluate, and prints the result.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const SHELL: &str = "
import socket, sys
of = {'socket': socket}
for line in sys.stdin:
    name, _, what = line.strip().partition(' = ')
    of[name] = eval(what, of)
    print(of[name], flush=True)
";

impl Peer {
    fn new() -> Self {
        let mut child = Command::new("python3")
            .args(["-c", SHELL])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// What an expression has as its result; others know it by this name.
    fn says(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        let mut said = String::new();
        self.output.read_line(&mut said).unwrap();
        assert!(!said.is_empty(), "{line}");
        said.trim().to_owned()
    }

    fn port(&mut self, socket: &str) -> u16 {
        self.says(&format!("p = {socket}.getsockname()[1]"))
            .parse()
            .unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A cgroup of version 2 with a process in it; removed when dropped, after the process has ended.
struct Group(PathBuf);

impl Group {
    fn of(pid: u32) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let mount = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let at = words.next()?;
            (words.next()? == "cgroup2").then(|| Path::new(at).to_owned())
        })?;
        let group = Self(mount.join(format!("strata-test-{pid}.scope")));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join("cgroup.procs"), pid.to_string()).unwrap();
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A packet with these ends.
fn packet(protocol: u8, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut packet = vec![0; 12];
    let transport = match protocol {
        6 => 20_u8,
        _ => 8,
    };
    match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => {
            packet.extend([8, 0, 0x45, 0, 0, 20 + transport, 0, 0, 0, 0, 64, protocol]);
            packet.extend([0, 0]);
            packet.extend(from.ip().octets());
            packet.extend(to.ip().octets());
        }
        (SocketAddr::V6(from), SocketAddr::V6(to)) => {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, transport, protocol, 64]);
            packet.extend(from.ip().octets());
            packet.extend(to.ip().octets());
        }
        _ => panic!("both are of one family"),
    }
    let ports = [from.port(), to.port()].map(u16::to_be_bytes).concat();
    let at = packet.len();
    packet.extend(ports);
    packet.resize(at + usize::from(transport), 0);
    match protocol {
        6 => packet[at + 12] = 0x50,
        _ => packet[at + 5] = 8,
    }
    packet
}

/// What `ss` lists: process and its name, by the socket's own end and its peer.
fn by_ss(options: &str) -> BTreeMap<(String, String), (u32, String)> {
    let output = Command::new("ss").args([options, "-H"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let process = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, users) = line.split_once("users:((\"")?;
        let (name, rest) = users.split_once("\",pid=")?;
        let pid = rest.split(',').next()?.parse().ok()?;
        let ends = (words[3].to_owned(), words[4].to_owned());
        Some((ends, (pid, name.to_owned())))
    };
    text.lines().filter_map(process).collect()
}

/// A process's path in version 2 of cgroups.
fn cgroup_of(pid: u32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
    path.unwrap().to_owned()
}

fn assert_is(found: Option<&Process>, (pid, name): &(u32, String)) {
    let found = found.unwrap_or_else(|| panic!("{name} {pid} is not found"));
    assert_eq!((found.pid, &*found.name), (*pid, name.as_str()));
    assert_eq!(*found.cgroup, *cgroup_of(*pid));
}

fn found(processes: &Processes, protocol: u8, from: SocketAddr, to: SocketAddr) -> Found {
    let packet = packet(protocol, from, to);
    processes.of_packet(LinkType::ETHERNET, &packet)
}

fn inside<T: Send>(test: impl FnOnce() -> T + Send) -> Option<T> {
    if !may_use_kernel("asking the kernel for processes") {
        return None;
    }
    let namespace = Namespace::new("st-proc");
    namespace.enter(|| {
        let _ = fs::write("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "0");
    });
    namespace.ip("link set lo up");
    Some(namespace.enter(test))
}

const FAMILIES: [(&str, &str, &str); 2] = [
    ("AF_INET", "127.0.0.1", "0.0.0.0"),
    ("AF_INET6", "::1", "::"),
];

#[test]
fn processes_of_tcp_are_those_of_ss() {
    inside(|| {
        for (family, own, _) in FAMILIES {
            let (mut server, mut client) = (Peer::new(), Peer::new());
            let group = Group::of(client.child.id());
            let processes = Processes::open().unwrap();
            server.says(&format!("s = socket.socket(socket.{family})"));
            server.says(&format!("b = s.bind(('{own}', 0)) or s.listen()"));
            let port = server.port("s");
            client.says(&format!("c = socket.create_connection(('{own}', {port}))"));
            let client_port = client.port("c");
            let at = |port| SocketAddr::new(own.parse().unwrap(), port);
            let [there, back] = [at(client_port), at(port)];
            server.says("a = s.accept()[0]");
            client.says("n = c.send(b'question')");
            assert_eq!(server.says("r = a.recv(100)"), "b'question'");
            let listed = by_ss("-tnp");
            let ends = |one: SocketAddr, other: SocketAddr| (one.to_string(), other.to_string());
            let [of_client, of_server] =
                [(there, back), (back, there)].map(|(one, other)| &listed[&ends(one, other)]);
            assert_eq!(of_client.0, client.child.id());
            assert_eq!(of_server.0, server.child.id());
            let there_found = found(&processes, 6, there, back);
            assert_is(there_found.sender.as_ref(), of_client);
            assert_is(there_found.receiver.as_ref(), of_server);
            let back_found = found(&processes, 6, back, there);
            assert_eq!(back_found.sender, there_found.receiver);
            assert_eq!(back_found.receiver, there_found.sender);
            if let Some(group) = &group {
                let name = group.0.file_name().unwrap().to_str().unwrap();
                assert!(there_found.sender.unwrap().cgroup.ends_with(name));
            }
            // Another connection.
            let other = found(&processes, 6, at(client_port ^ 1), back);
            assert!(other.sender.is_none() && other.is_candidate);
            drop((server, client));
        }
    });
}

#[test]
fn processes_of_udp_are_those_of_ss() {
    inside(|| {
        let processes = Processes::open().unwrap();
        for (family, own, any) in FAMILIES {
            let (mut server, mut client, mut other) = (Peer::new(), Peer::new(), Peer::new());
            for peer in [&mut server, &mut client, &mut other] {
                peer.says(&format!(
                    "s = socket.socket(socket.{family}, socket.SOCK_DGRAM)"
                ));
            }
            server.says(&format!("b = s.bind(('{any}', 0))"));
            let port = server.port("s");
            client.says(&format!("n = s.sendto(b'question', ('{own}', {port}))"));
            // As resolvers do.
            other.says(&format!("b = s.connect(('{own}', {port})) or s.send(b'x')"));
            let [client_port, other_port] = [&mut client, &mut other].map(|peer| peer.port("s"));
            let at = |port| SocketAddr::new(own.parse().unwrap(), port);
            let listed = by_ss("-aunp");
            let owner = |port: u16| {
                let of_port = |end: &str| end.ends_with(&format!(":{port}"));
                let mut all = listed.iter().filter(|((own, _), _)| of_port(own));
                let (_, owner) = all.next().unwrap();
                assert!(all.next().is_none());
                owner
            };
            for sender in [client_port, other_port] {
                let asked = found(&processes, 17, at(sender), at(port));
                assert_is(asked.sender.as_ref(), owner(sender));
                assert_is(asked.receiver.as_ref(), owner(port));
            }
        }
    });
}

/// Servers that ran before, and their connections; and a cgroup that is made later, which has a number.
#[test]
fn sockets_from_before_are_found() {
    inside(|| {
        let mut server = Peer::new();
        server.says("s = socket.create_server(('127.0.0.1', 0))");
        let port = server.port("s");
        let mut old = Peer::new();
        old.says(&format!(
            "c = socket.create_connection(('127.0.0.1', {port}))"
        ));
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let ends = [at(old.port("c")), at(port)];
        server.says("a = s.accept()[0]");
        let processes = Processes::open().unwrap();
        assert_eq!(found(&processes, 6, ends[0], ends[1]).sender, None);
        old.says("n = c.send(b'x')");
        assert_eq!(server.says("r = a.recv(1)"), "b'x'");
        let listed = by_ss("-tnp");
        let of_old = found(&processes, 6, ends[0], ends[1]);
        let [one, other] = ends.map(|end| end.to_string());
        assert_is(
            of_old.sender.as_ref(),
            &listed[&(one.clone(), other.clone())],
        );
        assert_is(of_old.receiver.as_ref(), &listed[&(other, one)]);
        let mut new = Peer::new();
        let group = Group::of(new.child.id());
        new.says(&format!(
            "c = socket.create_connection(('127.0.0.1', {port}))"
        ));
        let found = found(&processes, 6, at(new.port("c")), at(port));
        let [sender, receiver] = [found.sender, found.receiver].map(Option::unwrap);
        assert_eq!(
            (sender.pid, receiver.pid),
            (new.child.id(), server.child.id())
        );
        if let Some(group) = &group {
            let number = fs::metadata(&group.0).unwrap().ino();
            assert_eq!(*sender.cgroup, format!("#{number}"));
        }
        let mut list = Vec::new();
        push_comment(&mut list, Side::Sender, &sender);
        let comment = options::comments(&list).next().unwrap();
        assert_eq!(of_comment(comment), Some((Side::Sender, sender)));
        drop((server, old, new));
    });
}

/// More connections than there is room: most of the latest ones are found, and the others are counted.
#[test]
fn the_oldest_connections_are_forgotten() {
    inside(|| {
        let processes = Processes::open().unwrap();
        let mut peer = Peer::new();
        peer.says("s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)");
        let address = "'127.%d.%d.1' % (n >> 8, n & 255)";
        peer.says(&format!(
            "t = [s.sendto(b'', ({address}, 9)) for n in range(1, 40001)] and 0"
        ));
        let own = SocketAddr::from(([127, 0, 0, 1], peer.port("s")));
        let known = |from: u16, to: u16| {
            let numbers = (from..=to).filter(|number| {
                let [high, low] = number.to_be_bytes();
                let to = SocketAddr::from(([127, high, low, 1], 9));
                found(&processes, 17, own, to).sender.is_some()
            });
            numbers.count()
        };
        assert!((20_000..=32_768).contains(&known(1, 40_000)));
        assert!(known(39_001, 40_000) > 900);
        // Other processes of this machine have connections too.
        assert!(processes.forgotten() >= 40_000 - 32_768);
    });
}

/// Whether the kernel lets this process look at all others: `setpriv` runs the test again without the right.
#[test]
fn a_process_without_the_right_to_look_at_others_is_told_so() {
    if !may_use_kernel("processes of other users") {
        return;
    }
    let without = "STRATA_TEST_WITHOUT_PTRACE";
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = u64::from_str_radix(effective.unwrap().trim(), 16).unwrap();
    // CAP_SYS_PTRACE has the number 19 (linux/capability.h).
    let may = effective & (1 << 19) != 0;
    assert_eq!(Processes::open().unwrap().sees_all(), may);
    if std::env::var_os(without).is_some() {
        assert!(!may);
        return;
    }
    let status = Command::new("setpriv")
        .args(["--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_process_without_the_right_to_look_at_others_is_told_so",
        ])
        .env(without, "1")
        .status();
    assert!(status.unwrap().success());
}
