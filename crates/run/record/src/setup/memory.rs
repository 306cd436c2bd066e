//! Memory for tables of flows: how much there may be, and its preparation while packets are
//! counted.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use rustix::process::{Resource, getrlimit};
use rustix::system::sysinfo;
use strata_classify::Model;
use strata_pipeline::Prepares;
use strata_role::{RoleError, require, require_valid};
use strata_sandbox::Role;
use strata_sketch::{Preparation, Pressure, Sketch, TableSize};
use strata_wire::human_bytes;

use crate::error::{At as _, Result};
use crate::setup::cpus;

/// Tables of flows take at most this part of the memory, unless a limit is given.
const PART: u64 = 16;
/// What every worker may take all the same: layers of 2^16 buckets.
const LEAST: u64 = TableSize::fixed(16).bytes_max();

/// Memory of this machine in bytes, or what the control group of this process may use, if that is
/// less.
#[must_use]
pub fn machine_bytes() -> u64 {
    let info = sysinfo();
    let all = info
        .totalram
        .saturating_mul(u64::from(info.mem_unit.max(1)));
    let groups = fs::read_to_string("/proc/self/cgroup");
    let limit = groups
        .ok()
        .and_then(|groups| limit(&groups, Path::new("/sys/fs/cgroup")));
    limit.map_or(all, |limit| limit.min(all))
}

/// The same, or what this process may have, if that is less (`ulimit -v`, `ulimit -d`).
#[must_use]
pub fn usable_bytes() -> u64 {
    let own = [Resource::As, Resource::Data].map(|which| getrlimit(which).current);
    own.into_iter().flatten().fold(machine_bytes(), u64::min)
}

/// Fails if this process cannot get this amount of memory (`ulimit -v`, or what the system still gives),
/// of which nothing is used yet. What is allocated after this is there unless something else takes it
/// first.
///
/// # Errors
///
/// With the number of bytes, and for what they are.
pub fn room_for(bytes: u64, what: &str) -> strata_role::Result<()> {
    let mut probe: Vec<u8> = Vec::new();
    let len = usize::try_from(bytes).ok();
    let reserved = len.and_then(|len| probe.try_reserve_exact(len).ok());
    require(reserved.is_some(), || {
        format!("out of memory: {bytes} bytes for {what}")
    })
}

/// The lowest limit of the control groups that these lines of /proc/PID/cgroup name, and of those
/// around them: of version 2, or of the memory controller of version 1.
fn limit(groups: &str, mounted: &Path) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, Some(path)) = (parts.next(), parts.next()) else {
            return Vec::new();
        };
        let (root, names) = match controllers {
            Some("") => (mounted.to_owned(), &["memory.max", "memory.high"][..]),
            Some(names) if names.split(',').any(|name| name == "memory") => {
                (mounted.join("memory"), &["memory.limit_in_bytes"][..])
            }
            _ => return Vec::new(),
        };
        // Within a container, the path may be that of the host, which is not mounted there.
        let inner = Path::new(path).components();
        let inner = inner.filter(|part| matches!(part, Component::Normal(_)));
        let inner: PathBuf = root.join(inner.collect::<PathBuf>());
        let groups = inner
            .ancestors()
            .take_while(|group| group.starts_with(&root));
        let files = groups.flat_map(|group| names.iter().map(|name| group.join(name)));
        // "max" is no limit.
        let limits = files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
        limits.collect::<Vec<u64>>()
    });
    limits.min()
}

/// The size of each worker's table of flows: within this limit for all together, else within a part
/// of the machine's memory.
pub(crate) fn table_size(limit: Option<u64>, machine: u64, workers: u16) -> Result<TableSize> {
    let workers = u64::from(workers);
    let Some(limit) = limit else {
        return Ok(TableSize::within((machine / PART / workers).max(LEAST)));
    };
    require_valid(limit <= machine, || {
        let [limit, machine] = [limit, machine].map(human_bytes);
        format!(
            "memory for flow tables (--memory): {limit} is more than the {machine} of this \
             machine or its control group"
        )
    })?;
    let least = TableSize::BYTES_MIN * workers;
    require_valid(limit >= least, || {
        let kib = least >> 10;
        format!(
            "memory for flow tables (--memory) must be at least {kib}KiB, 512KiB for each worker"
        )
    })?;
    Ok(TableSize::within(limit / workers))
}

/// A table of flows for each of these workers, whose memory is present: taken on the worker's CPU,
/// so that it is near to it.
pub(crate) fn present(
    model: &Model,
    size: TableSize,
    cores: &[Option<usize>],
) -> Result<Vec<Sketch>> {
    let make = |core: Option<usize>| {
        if let Some(core) = core {
            cpus::pin(core)?;
        }
        let made = model.new_sketch(size).and_then(|mut sketch| {
            sketch.make_present()?;
            sketch.grow_when_prepared();
            Ok(sketch)
        });
        made.at("cannot allocate the table of flows (--memory)")
    };
    thread::scope(|scope| {
        let threads: Vec<_> = cores
            .iter()
            .map(|&core| scope.spawn(move || make(core)))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            let made = thread.join();
            made.map_err(|_| RoleError::Panicked("a table of flows could not be created"))?
        });
        joined.collect()
    })
}

/// What is reported once if the system has refused memory.
pub(crate) fn refused(pressure: &Pressure) -> String {
    let bytes = human_bytes(pressure.bytes());
    format!(
        "the system has too little memory to enlarge the table of flows beyond {bytes}: packets \
         of flows without an entry are classified by their own headers alone"
    )
}

/// Where workers ask for memory.
#[derive(Clone, Debug)]
pub(crate) struct Memory(SyncSender<Preparation>);

impl Memory {
    /// Starts the thread that prepares memory. It ends once no worker has this any more.
    pub(crate) fn start() -> Result<Self> {
        // Each worker asks for one thing at a time; with more of them, some ask again later.
        let (sender, asked) = sync_channel::<Preparation>(64);
        let work = move || {
            strata_role::sandbox::thread(Role::Memory);
            for preparation in asked {
                // The sketch counts what is refused.
                let _ = preparation.run();
            }
        };
        let thread = thread::Builder::new().name("strata-memory".into());
        thread.spawn(work).map_err(RoleError::Thread)?;
        Ok(Self(sender))
    }
}

impl Prepares for Memory {
    fn prepare(&mut self, preparation: Preparation) {
        // What is dropped counts as refused.
        let _ = self.0.try_send(preparation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn the_lowest_limit_around_this_process_counts() {
        let two = tree(&[
            ("memory.stat", "1"),
            ("a/memory.max", "9000000\n"),
            ("a/memory.high", "max\n"),
            ("a/b/memory.max", "max\n"),
            ("a/b/memory.high", "8000000\n"),
            ("other/memory.max", "5\n"),
        ]);
        assert_eq!(limit("0::/a/b\n", two.path()), Some(8_000_000));
        assert_eq!(limit("0::/a\n", two.path()), Some(9_000_000));
        assert_eq!(limit("0::/\n", two.path()), None);
        assert_eq!(limit("0::/../../other\n", two.path()), Some(5));
        assert_eq!(limit("", two.path()), None);
        let one = tree(&[
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/docker/x/memory.limit_in_bytes", "67108864\n"),
        ]);
        let groups = "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/docker/x\n";
        assert_eq!(limit(groups, one.path()), Some(64 << 20));
        // In a container without a namespace for groups, only its own group is mounted.
        let inside = tree(&[("memory/memory.limit_in_bytes", "1048576\n")]);
        assert_eq!(limit(groups, inside.path()), Some(1 << 20));
    }

    #[test]
    fn tables_fit_into_the_memory_of_small_and_large_machines() {
        const MIB: u64 = 1 << 20;
        let bits = |limit: Option<u64>, machine, workers| {
            let size = table_size(limit, machine, workers).unwrap();
            (size.bits(), size.bits_max())
        };
        // A Raspberry Pi with 1 GB: 59 MiB for all.
        assert_eq!(bits(None, 950 * MIB, 1), (18, 18));
        assert_eq!(bits(None, 950 * MIB, 4), (16, 16));
        assert_eq!(bits(None, 64 * MIB, 4), (16, 16), "as little as before");
        assert_eq!(bits(None, 16_000 * MIB, 1), (20, 22));
        assert_eq!(bits(None, 16_000 * MIB, 4), (20, 20));
        assert_eq!(bits(None, 256_000 * MIB, 64), (20, 20));
        assert_eq!(bits(None, 1 << 40, 16), (20, 22));
        assert_eq!(bits(Some(2000 * MIB), 4000 * MIB, 2), (20, 22));
        assert_eq!(bits(Some(MIB), 4000 * MIB, 2), (12, 12));
        let refused = |limit, workers| {
            let error = table_size(Some(limit), 4000 * MIB, workers).unwrap_err();
            error.to_string()
        };
        assert!(refused(MIB - 1, 2).contains("at least 1024KiB"));
        assert!(refused(4001 * MIB, 2).contains("of this machine or its control group"));
    }

    #[test]
    fn a_machine_has_memory() {
        assert!(machine_bytes() > 1 << 20);
    }
}
