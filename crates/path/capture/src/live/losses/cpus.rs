//! How much of the CPUs' time goes into receiving packets, which is not in the worker's.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs::File;
use std::time::Instant;

use super::drops::{read_from_start, softnet_file};

/// Maximum number of CPUs that are reported: those that spend most on it.
const CPUS_MAX: usize = 8;
/// A CPU is reported if it has at least one in this number of all packets, or of all runs of the
/// receive work.
const LEAST: u64 = 100;

/// A CPU that receives packets, over an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ReceiveCpu {
    /// Its number.
    pub cpu: u32,
    /// Packets per second that it received, from all interfaces of this machine: the first column
    /// of `/proc/net/softnet_stat`. What an XDP program takes away in the driver is not in it.
    pub packets_per_second: f64,
    /// Share of its time in software interrupts (`softirq` in `/proc/stat`): in the main receiving
    /// packets and everything that the kernel does with them, copying them to captures included.
    /// Most kernels sample this at each tick, so it is good to about a percent over a second.
    pub softirq: f64,
    /// Share of its time in which it had nothing to do (`idle` and `iowait`).
    pub idle: f64,
}

/// Measures them from one call to the next.
#[derive(Debug)]
pub struct ReceiveCpus {
    /// Opened once: a recording that has given up its privileges no longer reaches them.
    stat: Option<File>,
    softirqs: Option<File>,
    before: Option<Moment>,
}

#[derive(Debug)]
struct Moment {
    at: Instant,
    times: BTreeMap<u32, Times>,
    packets: BTreeMap<u32, u64>,
    /// How often each CPU ran the receive work.
    runs: BTreeMap<u32, u64>,
}

/// In ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) softirq: u64,
    pub(super) idle: u64,
    pub(super) all: u64,
}

impl Default for ReceiveCpus {
    fn default() -> Self {
        Self {
            stat: File::open("/proc/stat").ok(),
            softirqs: File::open("/proc/softirqs").ok(),
            before: None,
        }
    }
}

impl ReceiveCpus {
    /// The CPUs that have received packets since the last call, those that spend most on it first;
    /// empty if the kernel does not tell, and the first time.
    pub fn since_last(&mut self) -> Vec<ReceiveCpu> {
        let now = self.now();
        let shares = match (&self.before, &now) {
            (Some(before), Some(now)) => shares(before, now),
            _ => Vec::new(),
        };
        self.before = now;
        shares
    }

    fn now(&self) -> Option<Moment> {
        let stat = read_from_start(self.stat.as_ref()?).ok()?;
        let softnet = read_from_start(softnet_file()?).ok()?;
        let softirqs = read_from_start(self.softirqs.as_ref()?).ok()?;
        Some(Moment {
            at: Instant::now(),
            times: times(&stat),
            packets: packets(&softnet),
            runs: runs(&softirqs),
        })
    }
}

#[allow(clippy::cast_precision_loss)]
fn shares(before: &Moment, now: &Moment) -> Vec<ReceiveCpu> {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let packets = gained(&before.packets, &now.packets);
    let runs = gained(&before.runs, &now.runs);
    let share = |(&cpu, times): (&u32, &Times)| {
        let before = before.times.get(&cpu)?;
        let all = times.all.checked_sub(before.all).filter(|&all| all > 0)?;
        // Counters of idle time may go back a little (proc_stat(5)).
        let of_all = |now: u64, before: u64| now.saturating_sub(before) as f64 / all as f64;
        Some(ReceiveCpu {
            cpu,
            packets_per_second: packets.get(&cpu).map_or(0.0, |&packets| packets as f64) / seconds,
            softirq: of_all(times.softirq, before.softirq),
            idle: of_all(times.idle, before.idle),
        })
    };
    let receives = |cpu: &ReceiveCpu| is_much(&packets, cpu.cpu) || is_much(&runs, cpu.cpu);
    let mut all: Vec<ReceiveCpu> = now.times.iter().filter_map(share).collect();
    all.retain(receives);
    all.sort_by(|a, b| {
        let (a, b) = (
            (a.softirq, a.packets_per_second),
            (b.softirq, b.packets_per_second),
        );
        b.partial_cmp(&a).unwrap_or(Ordering::Equal)
    });
    all.truncate(CPUS_MAX);
    all
}

/// By how much counters of 32 bits have grown.
fn gained(before: &BTreeMap<u32, u64>, now: &BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
    let gain = |(&cpu, now): (&u32, &u64)| {
        let before = before.get(&cpu)?;
        Some((cpu, now.wrapping_sub(*before) & u64::from(u32::MAX)))
    };
    now.iter().filter_map(gain).collect()
}

/// Whether a CPU has at least one of [`LEAST`] of all.
fn is_much(gained: &BTreeMap<u32, u64>, cpu: u32) -> bool {
    let all: u64 = gained.values().sum();
    let found = gained.get(&cpu);
    found.is_some_and(|&found| found > 0 && found >= all / LEAST)
}

/// By CPU, from `/proc/stat`: `cpu0 user nice system idle iowait irq softirq steal ...`, of which
/// the rest is part of `user` and `nice`.
pub(super) fn times(stat: &str) -> BTreeMap<u32, Times> {
    let line = |line: &str| {
        let mut columns = line.strip_prefix("cpu")?.split(' ');
        let cpu = columns.next()?.parse().ok()?;
        let ticks: Vec<u64> = columns.take(8).map_while(|t| t.parse().ok()).collect();
        let &[_, _, _, idle, waiting, _, softirq, _] = &ticks[..] else {
            return None;
        };
        let times = Times {
            softirq,
            idle: idle.saturating_add(waiting),
            all: ticks.iter().sum(),
        };
        Some((cpu, times))
    };
    stat.lines().filter_map(line).collect()
}

/// Received packets by CPU.
fn packets(text: &str) -> BTreeMap<u32, u64> {
    let all = softnet(text, [0]).into_iter();
    all.map(|(cpu, [packets])| (cpu, packets)).collect()
}

/// These columns by CPU, from `/proc/net/softnet_stat`, whose lines are of CPUs that are online. Since Linux
/// 5.10 the 13th column is the CPU's number.
pub(super) fn softnet<const N: usize>(text: &str, wanted: [usize; N]) -> BTreeMap<u32, [u64; N]> {
    let line = |(number, line): (u32, &str)| {
        let hex = |column: &str| u64::from_str_radix(column, 16).ok();
        let columns: Vec<u64> = line.split_whitespace().map_while(hex).collect();
        let cpu = columns
            .get(12)
            .map_or(Some(number), |cpu| u32::try_from(*cpu).ok())?;
        let mut found = [0; N];
        for (found, column) in found.iter_mut().zip(wanted) {
            *found = *columns.get(column)?;
        }
        Some((cpu, found))
    };
    (0..).zip(text.lines()).filter_map(line).collect()
}

/// By CPU, from `/proc/softirqs`: a line of CPUs, then one for each kind of software interrupt.
fn runs(softirqs: &str) -> BTreeMap<u32, u64> {
    let cpus = softirqs.lines().next().unwrap_or("").split_whitespace();
    let cpus = cpus.map(|name| name.strip_prefix("CPU")?.parse().ok());
    let mut lines = softirqs.lines();
    let runs = lines.find_map(|line| line.trim_start().strip_prefix("NET_RX:"));
    let runs = runs.unwrap_or("").split_whitespace();
    let pair = |(cpu, runs): (Option<u32>, &str)| Some((cpu?, runs.parse().ok()?));
    cpus.zip(runs).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const STAT: &str = "cpu  9 9 9 9 9 9 9 9 0 0
cpu0 100 0 100 700 0 0 100 0 0 0
cpu3 50 10 40 800 100 0 0 0 50 0
intr 12 34
";
    const SOFTNET: &str = "\
ffffff00 00000000 00000005 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
00000001 00000002 00000005 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000003 00000000 00000000
";

    const SOFTIRQS: &str = "                    CPU0       CPU3
          HI:          1          2
      NET_TX:          5          6
      NET_RX:          7          9
       BLOCK:          1          9
";

    #[test]
    fn shares_are_of_the_interval_and_of_cpus_that_receive() {
        let before = Moment {
            at: Instant::now(),
            times: times(STAT),
            packets: packets(SOFTNET),
            runs: runs(SOFTIRQS),
        };
        let all = Times {
            softirq: 0,
            idle: 900,
            all: 1000,
        };
        assert_eq!(before.times[&3], all, "guests are part of user");
        assert_eq!(before.packets[&3], 1, "by its number, not its line");
        let later = "cpu0 110 0 110 710 5 0 165 0 0 0\ncpu3 50 10 40 900 100 0 0 0 50 0\n";
        // Over its 32 bits.
        let more = SOFTNET.replace("ffffff00", "00000100");
        let now = Moment {
            at: before.at + Duration::from_secs(2),
            times: times(later),
            packets: packets(&more),
            runs: runs(SOFTIRQS),
        };
        let [only] = &shares(&before, &now)[..] else {
            panic!("one CPU has received: {:?}", shares(&before, &now));
        };
        let expected = ReceiveCpu {
            cpu: 0,
            packets_per_second: 256.0,
            softirq: 0.65,
            idle: 0.15,
        };
        assert_eq!(*only, expected);
        // What XDP takes away shows in the runs only.
        let more = SOFTIRQS.replace("          7          9", "          7         12");
        let now = Moment {
            runs: runs(&more),
            ..now
        };
        let cpus: Vec<u32> = shares(&before, &now).iter().map(|cpu| cpu.cpu).collect();
        assert_eq!(cpus, [0, 3]);
    }

    #[test]
    fn this_machine_tells() {
        let cpus = ReceiveCpus::default();
        let now = cpus.now().unwrap();
        assert!(!now.times.is_empty());
        let known = |cpu: &u32| now.times.contains_key(cpu);
        assert!(!now.packets.is_empty() && now.packets.keys().all(known));
        assert!(!now.runs.is_empty() && now.packets.keys().all(|cpu| now.runs.contains_key(cpu)));
    }
}
