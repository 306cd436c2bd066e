//! Keeps the CPU budget of a live recording.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use strata_capture::live::FlowSampler;
use strata_control::cpu::{CpuState, adjust};
use strata_control::{Controller, CpuStatus};
use strata_wire::FlowShare;

/// How often CPU use is checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Measures CPU use, and sets the share of flows that is captured.
pub(crate) struct Governor {
    sampler: Option<FlowSampler>,
    state: CpuState,
    /// When it was last measured, and the CPU time used by then.
    last: (Instant, Duration),
    /// The warning already given.
    warned: bool,
}

impl Governor {
    pub(crate) fn new(sampler: Option<FlowSampler>) -> Self {
        let used = used(sampler.as_ref()).0;
        Self {
            sampler,
            state: CpuState::default(),
            last: (Instant::now(), used),
            warned: false,
        }
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
                "the CPU budget of {percent:.0} % will be kept when the recording is started anew"
            ));
        };
        let (used, problem) = used(Some(sampler));
        let seconds = used.saturating_sub(self.last.1).as_secs_f64();
        self.last = (now, used);
        let before = FlowShare::of(self.state.ratio);
        self.state = match budget {
            Some(budget) => adjust(&self.state, budget, seconds, elapsed.as_secs_f64()),
            None => CpuState::default(),
        };
        let share = FlowShare::of(self.state.ratio);
        if share != before {
            // The kernel's clock begins in 1970 and ends in 2262.
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            let since = since.map_or(0, |since| since.as_nanos());
            sampler.set(share, u64::try_from(since).expect("before 2262"));
        }
        let status = budget.map(|budget| CpuStatus {
            budget,
            used: self.state.used(),
            flow_share: share.ratio(),
        });
        controller.note_cpu(now, status);
        let problem = problem.filter(|_| !self.warned)?;
        self.warned = true;
        Some(format!(
            "the CPU budget leaves out what the kernel's programs take: {problem}"
        ))
    }
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
