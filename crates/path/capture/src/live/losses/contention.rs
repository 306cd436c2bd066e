//! Whether the CPUs on which this process runs are short for others: for forwarding, in the first place.
//!
//! Forwarding is done in software interrupts, which the kernel does not count as anybody's, and by threads
//! that wait for a CPU while we have it. Each shows elsewhere:
//!
//! ```text
//! /proc/net/softnet_stat   packets dropped before any socket; receive work that ran out of its time
//! /proc/stat               software interrupts, and what is idle, of the CPUs of this process
//! /proc/pressure/cpu       how long some thread waited for a CPU, anywhere; cpu.pressure: one of our control group
//! ```
//!
//! Source: proc_stat(5), Documentation/accounting/psi.rst, net/core/net-procfs.c.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity};
use strata_wire::exact;

use super::cpus::{Times, softnet, times};
use super::drops::{read_from_start, softnet_file};

/// What was found over an interval, of the CPUs on which this process may run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ContentionReading {
    /// Packets that were dropped before they reached any socket, since a backlog was full.
    pub dropped: u64,
    /// How often per second the receive work ran out of its time or number of packets.
    pub squeezed_per_second: f64,
    /// Share of its time in software interrupts, of the CPU that has the largest.
    pub softirq: f64,
    /// Share of the time in which they had nothing to do, all together.
    pub idle: f64,
    /// Share of the time in which some thread of this machine, or of our control group, waited for a CPU; 0 if the kernel does not say.
    pub waiting: f64,
}

/// Measures it from one call to the next.
#[derive(Debug)]
pub struct Contention {
    /// `None` for all.
    cpus: Option<Vec<u32>>,
    /// Opened once: a recording that has given up its privileges no longer reaches them.
    stat: Option<File>,
    /// Of all threads, and of those of our control group: of many CPUs, the former is an average.
    pressure: [Option<File>; 2],
    before: Option<Moment>,
}

#[derive(Debug)]
struct Moment {
    at: Instant,
    times: BTreeMap<u32, Times>,
    /// Dropped and squeezed.
    softnet: BTreeMap<u32, [u64; 2]>,
    waited_us: [Option<u64>; 2],
}

impl Contention {
    /// Of the CPUs on which this thread may run now.
    #[must_use]
    pub fn open() -> Self {
        let cpus = sched_getaffinity(None).ok().map(|set| {
            let cpus = 0..exact::<u32>(CpuSet::MAX_CPU);
            cpus.filter(|cpu| set.is_set(*cpu as usize)).collect()
        });
        Self {
            cpus,
            stat: File::open("/proc/stat").ok(),
            pressure: [Some(PathBuf::from("/proc/pressure/cpu")), own_pressure()]
                .map(|path| path.and_then(|path| File::open(path).ok())),
            before: None,
        }
    }

    /// What was found since the last call; `None` the first time, and if the kernel does not tell.
    pub fn since_last(&mut self) -> Option<ContentionReading> {
        let now = self.now();
        let before = std::mem::replace(&mut self.before, now);
        reading(&before?, self.before.as_ref()?)
    }

    fn now(&self) -> Option<Moment> {
        let stat = read_from_start(self.stat.as_ref()?).ok()?;
        let counts = softnet_file().and_then(|file| read_from_start(file).ok());
        let waited = |file: &Option<File>| waited_us(&read_from_start(file.as_ref()?).ok()?);
        let mut now = Moment {
            at: Instant::now(),
            times: times(&stat),
            softnet: softnet(counts.as_deref().unwrap_or(""), [1, 2]),
            waited_us: self.pressure.each_ref().map(waited),
        };
        if let Some(cpus) = &self.cpus {
            now.times.retain(|cpu, _| cpus.contains(cpu));
            now.softnet.retain(|cpu, _| cpus.contains(cpu));
        }
        Some(now)
    }
}

/// The file of the control group in which this process is, if it is in one of version 2.
fn own_pressure() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new("/sys/fs/cgroup").join(group).join("cpu.pressure"))
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`, in microseconds.
fn waited_us(pressure: &str) -> Option<u64> {
    let some = pressure.lines().find(|line| line.starts_with("some "))?;
    some.rsplit_once("total=")?.1.trim().parse().ok()
}

#[allow(clippy::cast_precision_loss)]
fn reading(before: &Moment, now: &Moment) -> Option<ContentionReading> {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let (mut idle, mut all, mut softirq) = (0_u64, 0_u64, 0.0_f64);
    for (cpu, now) in &now.times {
        let Some(before) = before.times.get(cpu) else {
            continue;
        };
        // Counters of idle time may go back a little (proc_stat(5)).
        let of_cpu = now.all.saturating_sub(before.all);
        if of_cpu > 0 {
            let busy = now.softirq.saturating_sub(before.softirq);
            softirq = softirq.max(busy as f64 / of_cpu as f64);
        }
        idle = now
            .idle
            .saturating_sub(before.idle)
            .min(of_cpu)
            .saturating_add(idle);
        all = of_cpu.saturating_add(all);
    }
    if all == 0 || seconds <= 0.0 {
        return None;
    }
    let gained = |column: usize| -> u64 {
        let counts = now.softnet.iter();
        let gain = counts.filter_map(|(cpu, now)| {
            let before = before.softnet.get(cpu)?;
            // They have 32 bits.
            Some(now[column].wrapping_sub(before[column]) & u64::from(u32::MAX))
        });
        gain.sum()
    };
    let waited = now.waited_us.iter().zip(before.waited_us);
    let waited = waited.filter_map(|(now, before)| Some((*now)?.saturating_sub(before?)));
    let waited_us = waited.fold(0, u64::max);
    Some(ContentionReading {
        dropped: gained(0),
        squeezed_per_second: gained(1) as f64 / seconds,
        softirq,
        idle: idle as f64 / all as f64,
        waiting: waited_us as f64 / 1e6 / seconds,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// As Linux 6.18 writes them, shortened.
    const STAT: [&str; 2] = [
        "cpu  1 0 1 1 0 0 1 0 0 0\ncpu0 100 0 100 700 0 0 100 0 0 0\ncpu1 0 0 0 900 0 0 0 0 0 0\n",
        "cpu  1 0 1 1 0 0 1 0 0 0\ncpu0 130 0 100 701 0 0 169 0 0 0\ncpu1 0 0 0 1000 0 0 0 0 0 0\n",
    ];
    const SOFTNET: [&str; 2] = [
        "00000009 ffffffff 00000005 0 0 0 0 0 0 0 0 0 00000000 0 0\n00000009 0 0 0 0 0 0 0 0 0 0 0 00000001 0 0\n",
        "00000009 00000002 00000069 0 0 0 0 0 0 0 0 0 00000000 0 0\n00000009 7 7 0 0 0 0 0 0 0 0 0 00000001 0 0\n",
    ];
    const PRESSURE: [&str; 2] = [
        "some avg10=1.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
        "some avg10=1.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
    ];

    #[test]
    fn only_the_cpus_of_the_process_count() {
        let at = Instant::now();
        let moment = |index: usize, cpus: &[u32]| {
            let mut moment = Moment {
                at: at + Duration::from_secs(2 * index as u64),
                times: times(STAT[index]),
                softnet: softnet(SOFTNET[index], [1, 2]),
                waited_us: [Some(0), waited_us(PRESSURE[index])],
            };
            moment.times.retain(|cpu, _| cpus.contains(cpu));
            moment.softnet.retain(|cpu, _| cpus.contains(cpu));
            moment
        };
        let found = |cpus: &[u32]| reading(&moment(0, cpus), &moment(1, cpus)).unwrap();
        let expected = ContentionReading {
            dropped: 3,
            squeezed_per_second: 50.0,
            softirq: 0.69,
            idle: 0.01,
            waiting: 0.25,
        };
        assert_eq!(found(&[0]), expected);
        let both = found(&[0, 1]);
        assert_eq!((both.dropped, both.idle), (10, 101.0 / 200.0));
        assert!(reading(&moment(0, &[7]), &moment(1, &[7])).is_none());
    }

    #[test]
    fn this_machine_tells() {
        let mut contention = Contention::open();
        assert!(contention.since_last().is_none(), "the first time");
        let begun = Instant::now();
        let found = loop {
            // A tick is at most 10 ms.
            if let Some(found) = contention.since_last() {
                break found;
            }
            assert!(begun.elapsed() < Duration::from_secs(10));
        };
        for share in [found.softirq, found.idle] {
            assert!((0.0..=1.0).contains(&share), "{found:?}");
        }
    }
}
