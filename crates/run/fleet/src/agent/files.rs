//! What an agent keeps in its directory, and what the kernel says of its interfaces.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strata_agent::{Assignment, Interface};
use strata_auth::authority::write_private;
use strata_capture::live::{ANY, Device, bridges_of_ports, namespaces_behind};
use strata_role::{At as _, Notice, Result, RoleError, Tell};

use super::libvirt::machines;

/// Letters of a name that somebody gave: less than what may be reported and announced.
const BEHIND_MAX: usize = 60;

/// The directory; no other agent has it meanwhile.
#[derive(Clone, Debug)]
pub(super) struct State {
    dir: PathBuf,
    lock: Arc<File>,
}

impl State {
    pub(super) fn lock(dir: &Path) -> Result<Self> {
        let path = dir.join("lock");
        let lock = File::create(&path).at(path.display())?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                dir: dir.to_owned(),
                lock: Arc::new(lock),
            }),
            Err(TryLockError::WouldBlock) => Err(RoleError::Refused(format!(
                "{}: another agent is running with this directory",
                dir.display()
            ))),
            Err(TryLockError::Error(error)) => Err(error).at(path.display()),
        }
    }

    /// Whether the directory is gone, or another one is in its place.
    pub(super) fn is_gone(&self) -> bool {
        let here = self.lock.metadata();
        let there = fs::metadata(self.dir.join("lock"));
        match (here, there) {
            (Ok(here), Ok(there)) => (here.dev(), here.ino()) != (there.dev(), there.ino()),
            (_, Err(error)) => error.kind() == std::io::ErrorKind::NotFound,
            (Err(_), _) => false,
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn read<T: for<'a> Deserialize<'a>>(&self, name: &str) -> Result<Option<T>> {
        let path = self.dir.join(name);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).at(path.display()),
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(std::io::Error::from)
            .at_with(|| format!("{}: damaged: remove it", path.display()))
    }

    fn write(&self, name: &str, what: &impl Serialize) -> Result<()> {
        let path = self.dir.join(name);
        let text = serde_json::to_string_pretty(what).map_err(std::io::Error::from)?;
        write_private(&path, &text).at_with(|| format!("{}: cannot write", path.display()))
    }

    /// What was assigned before, to go on with; without it the agent waits for its controller.
    pub(super) fn assignment(&self, tell: &Tell) -> Option<Assignment> {
        let read = self.read("assignment.json");
        read.unwrap_or_else(|error| {
            tell(&Notice::warning(error.chain()));
            None
        })
    }

    pub(super) fn keep_assignment(&self, assignment: &Assignment) -> Result<()> {
        self.write("assignment.json", assignment)
    }
}

/// Names of interfaces that are down, which are not captured.
pub(super) fn down() -> Vec<String> {
    let all = Device::all().unwrap_or_else(|_| Vec::new());
    let down = all.into_iter().filter(|device| !device.is_up);
    down.map(|device| device.name).collect()
}

/// All interfaces that could be captured.
pub(super) fn interfaces() -> Result<Vec<Interface>> {
    // `-i` separates names by commas.
    let may = |device: &&Device| device.name != ANY && !device.name.contains(',') && device.is_up;
    let devices = Device::all().map_err(RoleError::own)?;
    // What is not found out is no reason not to capture.
    let namespaces = namespaces_behind().unwrap_or_else(|_| BTreeMap::new());
    let bridges = bridges_of_ports().unwrap_or_else(|_| BTreeMap::new());
    let machines = machines();
    // The interface of a datapath of Open vSwitch stays down.
    let is_bridge = |device: &&Device| device.is_up || device.name.starts_with("ovs-");
    let bridging: BTreeMap<u32, &str> = devices
        .iter()
        .filter(is_bridge)
        .map(|device| (device.index, device.name.as_str()))
        .collect();
    let with = |device: &Device| {
        let machine = machines.get(&device.name);
        let namespace = namespaces.get(&device.index);
        let behind = match (machine, namespace) {
            (Some(machine), _) => format!("libvirt {machine}"),
            (None, Some(namespace)) => format!("netns {namespace}"),
            (None, None) => String::new(),
        };
        let bridge = bridges.get(&device.index);
        let bridge = bridge.and_then(|index| bridging.get(index));
        let bridge = bridge.map_or_else(String::new, |name| (*name).to_owned());
        interface(device, &behind, bridge)
    };
    Ok(devices.iter().filter(may).map(with).collect())
}

fn shown(text: &str) -> String {
    let letters = text.trim().chars().filter(|letter| !letter.is_control());
    letters.take(BEHIND_MAX).collect()
}

fn interface(device: &Device, behind: &str, bridge: String) -> Interface {
    let read = |file: &str| -> String {
        let path = Path::new("/sys/class/net").join(&device.name).join(file);
        let text = fs::read_to_string(path).ok();
        text.map_or(String::new(), |text| shown(&text))
    };
    Interface {
        index: device.index,
        mac: read("address"),
        alias: read("ifalias"),
        behind: shown(behind),
        bridge,
        name: device.name.clone(),
    }
}
