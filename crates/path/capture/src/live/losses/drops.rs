//! What was lost before packets reached us, where, and what to do about it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use strata_sys::interface as asked;

use crate::live::host::interface::ANY;

/// Where packets were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lost {
    /// The ring was full: the worker did not keep up.
    Kernel,
    /// A CPU's backlog was full before packets reached any socket.
    Softnet,
    /// The network card or its driver had no space.
    Device,
}

impl Lost {
    /// The name in summaries and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Softnet => "softnet",
            Self::Device => "device",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::Kernel => {
                "the ring was full: give it more memory (-B), spread flows over more cores \
                 (--cores), or filter"
            }
            Self::Softnet => {
                "a CPU's receive queue was full, for all programs on this host: raise \
                 net.core.netdev_max_backlog and net.core.netdev_budget, or spread interrupts \
                 over more CPUs"
            }
            Self::Device => {
                "the NIC's receive rings were full: enlarge them (`ethtool -G INTERFACE rx N`, see -g), \
                 or spread packets over more queues (-L)"
            }
        }
    }
}

/// What the host counts as lost, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DropCounts {
    /// `None` where the kernel does not say.
    softnet: Option<u64>,
    /// By counter: `eth0 rx_missed`.
    device: BTreeMap<String, u64>,
}

/// What was lost between two moments: where, counter, packets.
pub type Drops = Vec<(Lost, String, u64)>;

impl DropCounts {
    /// The counters now, as far as the host reports them.
    #[must_use]
    pub fn now(interfaces: &[String]) -> Self {
        let mut counts = Self {
            softnet: softnet_dropped(),
            device: BTreeMap::new(),
        };
        for name in interfaces.iter().filter(|name| *name != ANY) {
            let totals = device_totals(name).into_iter();
            for (counter, value) in totals.chain(ethtool_drops(name)) {
                counts.device.insert(format!("{name} {counter}"), value);
            }
        }
        counts
    }

    /// What was lost since `earlier`. Of a counter that was not reported at either moment nothing is
    /// known, so it adds nothing.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Drops {
        let mut drops = Vec::new();
        let mut add = |lost, counter: &str, now: u64, before: u64| {
            let packets = now.saturating_sub(before);
            if packets > 0 {
                drops.push((lost, counter.to_owned(), packets));
            }
        };
        if let Some((now, before)) = self.softnet.zip(earlier.softnet) {
            add(Lost::Softnet, "softnet_stat dropped", now, before);
        }
        for (counter, &value) in &self.device {
            if let Some(&before) = earlier.device.get(counter) {
                add(Lost::Device, counter, value, before);
            }
        }
        drops
    }
}

/// `/proc/net/softnet_stat`. It is opened once: a recording that has given up its privileges no
/// longer reaches any path in `/proc`.
pub(super) fn softnet_file() -> Option<&'static File> {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let file = FILE.get_or_init(|| File::open("/proc/net/softnet_stat").ok());
    file.as_ref()
}

/// Packets dropped since all CPUs' receive queues were full, since the host started: the sum of the second column
/// of each CPU's line, hexadecimal. `None` where the kernel does not say.
#[must_use]
pub fn softnet_dropped() -> Option<u64> {
    let text = read_from_start(softnet_file()?).ok()?;
    let column = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    text.lines().map(column).sum()
}

/// The current content of a kernel file.
pub(super) fn read_from_start(file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match file.read_at(&mut piece, bytes.len() as u64)? {
            0 => break,
            read => bytes.extend_from_slice(&piece[..read]),
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The interface's counters of packets for which there was no space. `rx_dropped` is not among
/// them: it also counts packets that no protocol of this host wanted.
fn device_totals(name: &str) -> Vec<(String, u64)> {
    let dir = Path::new("/sys/class/net").join(name);
    let number = |file: &str| -> Option<u64> {
        let text = fs::read_to_string(dir.join(file)).ok()?;
        text.trim().parse().ok()
    };
    // sysfs may show the interfaces of another network namespace.
    let index = asked::index(name).ok().map(u64::from);
    if index.is_none() || number("ifindex") != index {
        return Vec::new();
    }
    let counters = ["rx_missed_errors", "rx_fifo_errors", "rx_over_errors"];
    let value = |&counter: &&str| number(&format!("statistics/{counter}"));
    counters
        .iter()
        .filter_map(|counter| Some(((*counter).to_owned(), value(counter)?)))
        .collect()
}

/// The driver's own counters whose names say that received packets were lost.
fn ethtool_drops(name: &str) -> Vec<(String, u64)> {
    let is_loss = |counter: &str| {
        let counter = counter.to_ascii_lowercase();
        let lost = [
            "drop", "discard", "miss", "no_buf", "nobuf", "no_dma", "fifo", "overrun",
        ];
        lost.iter().any(|word| counter.contains(word)) && !counter.starts_with("tx")
    };
    // A driver without statistics has no such counters.
    let counters = ethtool_statistics(name).into_iter().flatten();
    counters.filter(|(counter, _)| is_loss(counter)).collect()
}

/// linux/ethtool.h: `ETHTOOL_GSSET_INFO`, `ETHTOOL_GSTRINGS`, `ETHTOOL_GSTATS` of the
/// set `ETH_SS_STATS`.
fn ethtool_statistics(name: &str) -> Option<Vec<(String, u64)>> {
    const GSSET_INFO: u32 = 0x37;
    const GSTRINGS: u32 = 0x1b;
    const GSTATS: u32 = 0x1d;
    const STATISTICS: u32 = 1;
    const NAME_LEN: usize = 32;
    /// Drivers with many queues have thousands.
    const COUNTERS_MAX: u32 = 1 << 16;

    // cmd, reserved, 64-bit mask of sets, then one count for each bit left set.
    let mut sets = [0; 20];
    sets[..4].copy_from_slice(&GSSET_INFO.to_ne_bytes());
    sets[8..16].copy_from_slice(&(1_u64 << STATISTICS).to_ne_bytes());
    asked::ethtool(name, &mut sets).ok()?;
    let count = u32::from_ne_bytes(sets[16..20].try_into().ok()?);
    if count == 0 || count > COUNTERS_MAX {
        return None;
    }
    let counters = usize::try_from(count).ok()?;
    // Space for counters that appear in the meantime: the kernel returns as many as there are.
    let bytes = |head: usize, each: usize| {
        let all = counters.checked_mul(2)?.checked_mul(each)?;
        Some(vec![0; all.checked_add(head)?])
    };

    let mut names = bytes(12, NAME_LEN)?;
    names[..4].copy_from_slice(&GSTRINGS.to_ne_bytes());
    names[4..8].copy_from_slice(&STATISTICS.to_ne_bytes());
    names[8..12].copy_from_slice(&count.to_ne_bytes());
    asked::ethtool(name, &mut names).ok()?;

    let mut values = bytes(8, 8)?;
    values[..4].copy_from_slice(&GSTATS.to_ne_bytes());
    values[4..8].copy_from_slice(&count.to_ne_bytes());
    asked::ethtool(name, &mut values).ok()?;

    let names = names[12..].chunks_exact(NAME_LEN);
    let values = values[8..].as_chunks::<8>().0;
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let pairs = names.zip(values).take(counters);
    Some(
        pairs
            .map(|(name, value)| (text(name), u64::from_ne_bytes(*value)))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_without_an_earlier_value_say_nothing_about_losses() {
        let device = |pairs: &[(&str, u64)]| {
            let pairs = pairs.iter();
            pairs.map(|&(name, value)| (name.into(), value)).collect()
        };
        let earlier = DropCounts {
            softnet: None,
            device: device(&[("eth0 rx_missed", 7), ("eth0 rx_over", 5)]),
        };
        let now = DropCounts {
            softnet: Some(1_000),
            device: device(&[
                ("eth0 rx_missed", 9),
                ("eth0 rx_new", 40),
                ("eth0 rx_over", 0),
            ]),
        };
        assert_eq!(
            now.since(&earlier),
            [(Lost::Device, "eth0 rx_missed".into(), 2)]
        );
        assert_eq!(
            earlier.since(&now),
            [(Lost::Device, "eth0 rx_over".into(), 5)]
        );
        assert!(softnet_dropped().is_some(), "this kernel tells");
    }
}
