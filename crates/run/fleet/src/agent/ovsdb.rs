//! Bridges and ports of Open vSwitch, from its database (RFC 7047, and the schema `Open_vSwitch`).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde_json::{Value, json};
use strata_agent::{Switch, Switches};
use strata_capture::live::Device;

/// Where its server listens, unless it was told otherwise.
const SOCKET: &str = "/run/openvswitch/db.sock";
/// The server is on this host, and answers from its memory.
const ANSWER: Duration = Duration::from_secs(1);
/// Of an answer: a port takes about 400 bytes.
const ANSWER_BYTES: u64 = 16 << 20;
/// Interfaces by which a network namespace has a datapath.
const DATAPATHS: [&str; 2] = ["ovs-netdev", "ovs-system"];
/// In a note.
const HINT: &str = "so packets between its ports may be exported twice";

/// Reads the ports of Open vSwitch.
#[derive(Debug)]
pub(super) struct Ovsdb {
    socket: PathBuf,
    /// Whether the user has named the socket.
    is_given: bool,
}

impl Ovsdb {
    pub(super) fn new(given: Option<PathBuf>) -> Self {
        Self {
            is_given: given.is_some(),
            socket: given.unwrap_or_else(|| SOCKET.into()),
        }
    }

    /// The switches of this host, of which these interfaces are up in this network namespace.
    pub(super) fn switches(&self, up: &BTreeSet<&str>) -> Switches {
        let datapath = || DATAPATHS.iter().find(|name| Device::named(name).is_ok());
        let failed = |why: String| match (datapath(), self.is_given) {
            (None, false) => Switches::default(),
            (Some(name), _) => Switches {
                problem: format!(
                    "Open vSwitch forwards packets here ({name}), but its ports are not known, {HINT}: {why}"
                ),
                ..Switches::default()
            },
            (None, true) => Switches {
                problem: format!("the ports of Open vSwitch are not known, {HINT}: {why}"),
                ..Switches::default()
            },
        };
        let socket = self.socket.display();
        let is_here = |name: &str| Device::named(name).is_ok();
        match self.tables().map(|tables| read(&tables, up, is_here)) {
            Ok(Some(all)) => Switches {
                all,
                problem: String::new(),
            },
            Ok(None) => failed(format!("{socket}: not the database of an Open vSwitch")),
            Err(error) => failed(match error.kind() {
                ErrorKind::NotFound => format!("{socket} does not exist (--ovsdb)"),
                ErrorKind::PermissionDenied => {
                    format!("{socket}: the agent's user may not connect: permit it to write there")
                }
                _ => format!("{socket}: {error}"),
            }),
        }
    }

    /// Rows of its tables, as the server answers.
    fn tables(&self) -> io::Result<Value> {
        let mut server = connect(&self.socket)?;
        let select = |table: &str, columns: &[&str]| json!({"op": "select", "table": table, "where": [], "columns": columns});
        let request = json!({
            "id": 0,
            "method": "transact",
            "params": [
                "Open_vSwitch",
                select("Bridge", &["name", "ports", "datapath_type"]),
                select("Port", &["_uuid", "interfaces"]),
                select("Interface", &["_uuid", "name", "type", "options", "error"]),
            ],
        });
        server.write_all(request.to_string().as_bytes())?;
        let answer = Answer {
            server,
            until: Instant::now() + ANSWER,
        };
        // Nothing is between messages: one ends where its value does.
        let answers =
            serde_json::Deserializer::from_reader(BufReader::new(answer.take(ANSWER_BYTES)));
        let answer = answers.into_iter::<Value>().next();
        let mut answer = answer.ok_or(ErrorKind::UnexpectedEof)??;
        Ok(answer.get_mut("result").map_or(Value::Null, Value::take))
    }
}

/// Connects without waiting: a server that accepts nothing any more is an error.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let server = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&server, &SocketAddrUnix::new(socket)?)?;
    let server = UnixStream::from(server);
    server.set_nonblocking(false)?;
    server.set_write_timeout(Some(ANSWER))?;
    Ok(server)
}

/// An answer, which must be there as a whole at a time.
struct Answer {
    server: UnixStream,
    until: Instant,
}

impl io::Read for Answer {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.server.set_read_timeout(Some(left))?;
        self.server.read(into)
    }
}

/// The values of a column: of a set, or one (RFC 7047 section 5.1).
fn values(column: &Value) -> Vec<&Value> {
    match (&column[0], &column[1]) {
        (Value::String(kind), Value::Array(all)) if kind == "set" => all.iter().collect(),
        _ => vec![column],
    }
}

/// A row's number.
fn uuid(value: &Value) -> Option<&str> {
    value[1].as_str().filter(|_| value[0] == "uuid")
}

/// A value of a map (`["map", [[key, value], ...]]`).
fn option<'a>(column: &'a Value, key: &str) -> Option<&'a str> {
    let all = column[1].as_array()?;
    let pair = all.iter().find(|pair| pair[0] == key)?;
    pair[1].as_str()
}

/// What a port of a bridge is.
enum Port<'a> {
    Outside(&'a str),
    Own(&'a str),
    Elsewhere(String),
    /// To another bridge, by the name of the port there.
    Patch(&'a str),
    /// Nothing passes it.
    Idle,
}

/// A port of a row. Of an interface that was moved to another network namespace, Open vSwitch says that it is down,
/// though packets pass it: only one that `is_here` is known to be down.
fn port<'a>(
    row: &'a Value,
    up: &BTreeSet<&str>,
    is_here: &impl Fn(&str) -> bool,
) -> Option<(&'a str, Port<'a>)> {
    let name = row["name"].as_str()?;
    let kind = row["type"].as_str()?;
    let is_up = up.contains(name);
    let port = match kind {
        _ if row["error"].as_str().is_some_and(|error| !error.is_empty()) => Port::Idle,
        "patch" => option(&row["options"], "peer").map_or(Port::Idle, Port::Patch),
        "" | "system" if is_up => Port::Outside(name),
        "internal" | "tap" if is_up => Port::Own(name),
        "" | "system" | "internal" | "tap" if is_here(name) => Port::Idle,
        "" | "system" | "internal" | "tap" => {
            Port::Elsewhere(format!("{name} (not in this network namespace)"))
        }
        kind => Port::Elsewhere(format!("{name} ({kind})")),
    };
    Some((name, port))
}

/// Switches of the rows of `Bridge`, `Port` and `Interface`; `None` if these are not what the schema says.
fn read(
    tables: &Value,
    up: &BTreeSet<&str>,
    is_here: impl Fn(&str) -> bool,
) -> Option<Vec<Switch>> {
    let rows = |table: usize| tables[table]["rows"].as_array();
    let interfaces: BTreeMap<&str, &Value> = rows(2)?
        .iter()
        .filter_map(|row| Some((uuid(&row["_uuid"])?, row)))
        .collect();
    let ports: BTreeMap<&str, Vec<&Value>> = rows(1)?
        .iter()
        .filter_map(|row| Some((uuid(&row["_uuid"])?, values(&row["interfaces"]))))
        .collect();
    let mut switches = Vec::new();
    // Names of patch ports: their switches, and their peers.
    let mut patches: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for row in rows(0)? {
        let mut one = Switch {
            bridges: vec![row["name"].as_str()?.to_owned()],
            in_kernel: row["datapath_type"]
                .as_str()
                .is_none_or(|kind| kind != "netdev"),
            ..Switch::default()
        };
        let of_bridge = values(&row["ports"]).into_iter().filter_map(uuid);
        let members = of_bridge.filter_map(|port| ports.get(port)).flatten();
        let rows = members.filter_map(|member| interfaces.get(uuid(member)?));
        for (name, found) in rows.filter_map(|row| port(row, up, &is_here)) {
            match found {
                Port::Outside(name) => one.ports.push(name.to_owned()),
                Port::Own(name) => one.own.push(name.to_owned()),
                Port::Elsewhere(what) => one.elsewhere.push(what),
                Port::Patch(peer) => {
                    patches.insert(name, (switches.len(), peer));
                }
                Port::Idle => {}
            }
        }
        switches.push(one);
    }
    let pairs = patches.values().filter_map(|(own, peer)| {
        let (other, _) = patches.get(peer)?;
        Some((*own, *other))
    });
    Some(joined(switches, pairs))
}

/// Switches that pairs of them join are one.
fn joined(mut switches: Vec<Switch>, pairs: impl Iterator<Item = (usize, usize)>) -> Vec<Switch> {
    // Where each has gone.
    let mut place: Vec<usize> = (0..switches.len()).collect();
    for (one, other) in pairs {
        let (to, from) = (place[one], place[other]);
        if to == from {
            continue;
        }
        let taken = std::mem::take(&mut switches[from]);
        let into = &mut switches[to];
        into.bridges.extend(taken.bridges);
        into.ports.extend(taken.ports);
        into.own.extend(taken.own);
        into.elsewhere.extend(taken.elsewhere);
        into.in_kernel &= taken.in_kernel;
        let moved = place.iter_mut().filter(|place| **place == from);
        moved.for_each(|place| *place = to);
    }
    switches.retain(|one| !one.bridges.is_empty());
    for one in &mut switches {
        // The server gives rows in any order.
        for names in [
            &mut one.bridges,
            &mut one.ports,
            &mut one.own,
            &mut one.elsewhere,
        ] {
            names.sort_unstable();
        }
    }
    switches.sort_by(|one, other| one.bridges.cmp(&other.bridges));
    switches
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bridge with these ports, each with one interface: its row, and those of its ports.
    fn bridge(name: &str, kind: &str, ports: &[Value]) -> [Vec<Value>; 3] {
        let id = |port: &Value, of: &str| json!(["uuid", format!("{of}-{}", port["name"])]);
        let all: Vec<Value> = ports.iter().map(|port| id(port, "port")).collect();
        let all = match &all[..] {
            [one] => one.clone(),
            all => json!(["set", all]),
        };
        let of_port =
            |port| json!({"_uuid": id(port, "port"), "interfaces": id(port, "interface")});
        let interface = |port: &Value| {
            let mut row = port.clone();
            row["_uuid"] = id(port, "interface");
            row
        };
        [
            vec![json!({"name": name, "datapath_type": kind, "ports": all})],
            ports.iter().map(of_port).collect(),
            ports.iter().map(interface).collect(),
        ]
    }

    fn plain(name: &str, kind: &str) -> Value {
        json!({"name": name, "type": kind, "options": ["map", []], "error": ["set", []]})
    }

    fn patch(name: &str, peer: &str) -> Value {
        let mut row = plain(name, "patch");
        row["options"] = json!(["map", [["peer", peer]]]);
        row
    }

    fn tables(bridges: &[[Vec<Value>; 3]]) -> Value {
        let table = |at: usize| {
            let rows: Vec<Value> = bridges.iter().flat_map(|one| one[at].clone()).collect();
            json!({"rows": rows})
        };
        json!([table(0), table(1), table(2)])
    }

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn bridges_that_patch_ports_join_are_one_switch() {
        let mut gone = plain("gone", "");
        gone["error"] = json!("could not open network device gone (No such device)");
        let tables = tables(&[
            bridge(
                "br-tun",
                "netdev",
                &[patch("p3", "p2"), plain("vx", "vxlan")],
            ),
            bridge("br-ex", "netdev", &[patch("p1", "p0"), plain("eth1", "")]),
            bridge(
                "br-int",
                "netdev",
                &[
                    plain("tap1", ""),
                    plain("tap0", "system"),
                    plain("br-int", "internal"),
                    plain("qr-1", "internal"),
                    plain("down0", ""),
                    gone,
                    patch("p0", "p1"),
                    patch("p2", "p3"),
                    patch("nowhere", "none"),
                ],
            ),
            bridge("br-0", "", &[plain("eth2", "")]),
        ]);
        let up = BTreeSet::from(["tap0", "tap1", "eth1", "eth2", "br-int"]);
        let one = Switch {
            bridges: names(&["br-ex", "br-int", "br-tun"]),
            ports: names(&["eth1", "tap0", "tap1"]),
            own: names(&["br-int"]),
            elsewhere: names(&["qr-1 (not in this network namespace)", "vx (vxlan)"]),
            in_kernel: false,
        };
        let other = Switch {
            bridges: names(&["br-0"]),
            ports: names(&["eth2"]),
            in_kernel: true,
            ..Switch::default()
        };
        let is_here = |name: &str| name == "down0";
        assert_eq!(read(&tables, &up, is_here).unwrap(), [other, one]);
        assert_eq!(
            read(&json!([{"error": "unknown table"}]), &up, is_here),
            None
        );
    }

    #[test]
    fn a_host_without_open_vswitch_has_no_switch() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("db.sock");
        let given = Ovsdb::new(Some(socket.clone())).switches(&BTreeSet::new());
        assert!(
            given.problem.contains("db.sock does not exist"),
            "{given:?}"
        );
        // Something else answers.
        let server = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let answers = std::thread::spawn(move || {
            for answer in ["{\"id\":0,\"result\":null}", "[]", "\"x\""] {
                let (mut client, _) = server.accept().unwrap();
                // A request comes at once.
                assert!(client.read(&mut [0; 4_096]).unwrap() > 0);
                client.write_all(answer.as_bytes()).unwrap();
            }
        });
        for _ in 0..3 {
            let other = Ovsdb::new(Some(socket.clone())).switches(&BTreeSet::new());
            assert!(other.problem.contains("not the database"), "{other:?}");
        }
        answers.join().unwrap();
    }
}
