//! Keeps the CPU budget of a live recording; `shed` gives up payload while packets are lost.

mod shed;

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use strata_capture::live::{Contention, ContentionReading, FlowSampler};
use strata_control::contention::{Cores, GivenWay};
use strata_control::cpu::{CpuState, adjust};
use strata_control::{Controller, CpuStatus, ShortStatus};
use strata_wire::{FlowShare, unix_ns};

pub(crate) use shed::Shedder;

/// How often CPU use is checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often the CPUs are looked at: the kernel counts their time in ticks.
const CORES_EVERY: Duration = Duration::from_secs(1);

/// CPUs are short if the receive work runs out of its time at this rate, per second: each time after 2 ms, so
/// for a tenth of the time; or if one has nearly no time for anything but software interrupts.
const SQUEEZED: [f64; 2] = [10.0, 50.0];
const SOFTIRQ: [f64; 2] = [0.7, 0.9];
/// Or if nothing is idle and threads wait for a CPU for such a share of the time.
const IDLE: f64 = 0.05;
const WAITING: [f64; 2] = [0.02, 0.1];

/// Measures CPU use, and sets the share of flows that is captured.
pub(crate) struct Governor {
    sampler: Option<FlowSampler>,
    state: CpuState,
    /// When it was last measured, and the CPU time used by then.
    last: (Instant, Duration),
    /// The warning already given.
    warned: bool,
    gives_way: Option<GivesWay>,
}

impl Governor {
    pub(crate) fn new(sampler: Option<FlowSampler>, gives_way: bool) -> Self {
        let used = used(sampler.as_ref()).0;
        Self {
            sampler,
            state: CpuState::default(),
            last: (Instant::now(), used),
            warned: false,
            gives_way: gives_way.then(GivesWay::new),
        }
    }

    /// Whether it gives way to others by copying only headers.
    pub(crate) fn headers_only(&self) -> bool {
        let gives_way = self.gives_way.as_ref();
        gives_way.is_some_and(|gives_way| gives_way.state.headers_only())
    }

    /// Adjusts the share; returns what to report.
    pub(crate) fn look(&mut self, controller: &Controller) -> Option<String> {
        let now = Instant::now();
        let elapsed = now - self.last.0;
        if elapsed < LOOK_EVERY {
            return None;
        }
        let budget = controller.cpu_budget();
        let Some(sampler) = &self.sampler else {
            let events = budget.filter(|_| !self.warned)?;
            self.warned = true;
            let percent = events * 100.0;
            return Some(format!(
                "the CPU budget of {percent:.0} % takes effect when the recording is restarted"
            ));
        };
        let (used, problem) = used(Some(sampler));
        let seconds = used.saturating_sub(self.last.1).as_secs_f64();
        self.last = (now, used);
        let before = FlowShare::of(self.state.ratio);
        let short = match (budget, &mut self.gives_way) {
            (Some(budget), Some(gives_way)) => gives_way.look(now, budget),
            _ => None,
        };
        let left = short.as_ref().map_or(budget, |short| Some(short.budget));
        self.state = match left {
            Some(budget) => adjust(&self.state, budget, seconds, elapsed.as_secs_f64()),
            None => CpuState::default(),
        };
        let share = FlowShare::of(self.state.ratio);
        if share != before {
            // The kernel's clock begins in 1970 and ends in 2262.
            sampler.set(share, unix_ns());
        }
        let status = budget.map(|budget| CpuStatus {
            budget,
            used: self.state.used(),
            flow_share: share.ratio(),
            short,
        });
        controller.note_cpu(now, status);
        let problem = problem.filter(|_| !self.warned)?;
        self.warned = true;
        Some(format!(
            "the CPU budget does not include the programs in the kernel: {problem}"
        ))
    }
}

/// Gives way to others on the CPUs of this process.
struct GivesWay {
    contention: Contention,
    started: Instant,
    looked: Instant,
    state: GivenWay,
    /// What was found last that made them short.
    why: String,
}

impl GivesWay {
    fn new() -> Self {
        let now = Instant::now();
        let mut contention = Contention::open();
        contention.since_last();
        Self {
            contention,
            started: now,
            looked: now,
            state: GivenWay::default(),
            why: String::new(),
        }
    }

    /// What is left of the budget, if it is not all.
    fn look(&mut self, now: Instant, budget: f64) -> Option<ShortStatus> {
        if now - self.looked >= CORES_EVERY
            && let Some(reading) = self.contention.since_last()
        {
            self.looked = now;
            let (cores, why) = judge(&reading);
            if cores == Cores::Short {
                self.why = why;
            }
            let since = now.duration_since(self.started).as_nanos();
            let since = u64::try_from(since).expect("it runs for less than 500 years");
            self.state = self.state.next(cores, since);
        }
        self.state.headers_only().then(|| ShortStatus {
            budget: self.state.left(budget),
            why: self.why.clone(),
        })
    }
}

/// How the CPUs are, and why.
fn judge(found: &ContentionReading) -> (Cores, String) {
    let waiting = if found.idle <= IDLE {
        found.waiting
    } else {
        0.0
    };
    let percent = |share: f64| share * 100.0;
    #[allow(clippy::cast_precision_loss)]
    let dropped = found.dropped as f64;
    let all = [
        (
            dropped,
            [1.0, 1.0],
            format!("packets dropped in a second before they reached any socket: {dropped}"),
        ),
        (
            found.squeezed_per_second,
            SQUEEZED,
            format!(
                "receive work used up its time slice (time_squeeze) {:.0} times a second",
                found.squeezed_per_second
            ),
        ),
        (
            found.softirq,
            SOFTIRQ,
            format!(
                "a CPU spends {:.0} % of its time in software interrupts",
                percent(found.softirq)
            ),
        ),
        (
            waiting,
            WAITING,
            format!(
                "threads wait for a CPU {:.0} % of the time",
                percent(waiting)
            ),
        ),
    ];
    let mut cores = Cores::Calm;
    for (value, [busy, short], why) in all {
        if value >= short {
            return (Cores::Short, why);
        }
        if value >= busy {
            cores = Cores::Busy;
        }
    }
    (cores, String::new())
}

/// CPU time of the process and its programs in the kernel, and why the latter is missing.
fn used(sampler: Option<&FlowSampler>) -> (Duration, Option<String>) {
    let process = clock_gettime(ClockId::ProcessCPUTime);
    let process = Duration::try_from(process).expect("CPU time is not negative");
    match sampler.map(FlowSampler::kernel_time) {
        Some(Ok(kernel)) => (process + kernel, None),
        Some(Err(problem)) => (process, Some(problem)),
        None => (process, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = dyn Fn(&mut ContentionReading);

    #[test]
    fn cpus_are_short_by_each_of_their_signs() {
        let calm = ContentionReading::default();
        let judged = |change: &Change| {
            let mut reading = calm;
            reading.idle = 0.5;
            change(&mut reading);
            judge(&reading)
        };
        assert_eq!(judged(&|_| {}).0, Cores::Calm);
        // Somebody waits elsewhere, but there is room here; we alone are busy.
        assert_eq!(judged(&|it| it.waiting = 0.9).0, Cores::Calm);
        assert_eq!(judged(&|it| it.idle = 0.0).0, Cores::Calm);
        assert_eq!(judged(&|it| it.softirq = 0.8).0, Cores::Busy);
        let all: [(&Change, &str); 4] = [
            (&|it| it.dropped = 1, "any socket: 1"),
            (&|it| it.squeezed_per_second = 60.0, "60 times a second"),
            (&|it| it.softirq = 0.95, "95 % of its time"),
            (
                &|it| (it.idle, it.waiting) = (0.01, 0.3),
                "wait for a CPU 30 %",
            ),
        ];
        for (change, why) in all {
            let (cores, text) = judged(change);
            assert!(cores == Cores::Short && text.contains(why), "{text}");
        }
    }
}
