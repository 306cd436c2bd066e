//! How well the model fits the traffic of the last minutes.

use std::time::{Duration, Instant};

use strata_classify::Drift;
use strata_control::DriftWindow;

/// A window lasts this long at least, ...
const WINDOW: Duration = Duration::from_secs(60);
/// ... and until this number of packets was looked at.
const WINDOW_SAMPLES: u64 = 1_000;

/// Compares windows of the traffic with training: counters since the start would take as long to say
/// that the traffic has changed as it was unchanged.
#[derive(Debug, Default)]
pub(crate) struct DriftWatch {
    /// The counters at the start of the current window, and when that was; `None` before the first.
    start: Option<(Drift, Instant)>,
    /// The latest whole window.
    latest: Option<DriftWindow>,
}

impl DriftWatch {
    /// The latest whole window, or what there is of the first one, given the counters of all workers
    /// so far.
    pub(crate) fn look(&mut self, drift: &Drift, now: Instant) -> DriftWindow {
        match &self.start {
            None => self.start = Some((drift.clone(), now)),
            Some((start, since)) => match drift.since(start) {
                Some(window) => {
                    let lasted = now.saturating_duration_since(*since);
                    if lasted >= WINDOW && window.samples() >= WINDOW_SAMPLES {
                        self.latest = Some(DriftWindow {
                            report: window.report(),
                            is_whole: true,
                        });
                        self.start = Some((drift.clone(), now));
                    }
                }
                // Counters that are not those of before, as of a model that was promoted, begin a
                // new window.
                None => {
                    self.latest = None;
                    self.start = Some((drift.clone(), now));
                }
            },
        }
        let first = || DriftWindow {
            report: drift.report(),
            is_whole: false,
        };
        self.latest.clone().unwrap_or_else(first)
    }
}

#[cfg(test)]
mod tests {
    use strata_classify::Model;

    use super::*;

    #[test]
    fn a_change_shows_after_a_window_however_long_nothing_changed() {
        let path = strata_testkit::workspace_root().join("models/default.json");
        let model = Model::from_json(&std::fs::read(path).unwrap()).unwrap();
        let values = vec![0; model.feature_list().len()];
        let mut drift = Drift::new(&model).unwrap();
        let mut watch = DriftWatch::default();
        let began = Instant::now();
        let mut minute = |anomaly, number: u32| {
            (0..100_000).for_each(|_| drift.observe(&values, anomaly));
            watch.look(&drift, began + WINDOW * number)
        };
        // The first window is judged while it lasts.
        let first = minute(0.0, 0);
        assert_eq!((first.report.samples, first.is_whole), (100_000, false));
        let quiet = (1..=10).map(|number| minute(0.0, number)).last().unwrap();
        assert_eq!((quiet.report.samples, quiet.is_whole), (100_000, true));
        // All scores are in a range other than before, which the sum of all minutes hardly shows.
        let changed = minute(0.99, 11);
        assert_eq!(changed.report.samples, 100_000);
        assert!((changed.report.scores - quiet.report.scores).abs() > 1.0);
        // Part of a window is not reported.
        let (mut watch, mut drift) = (DriftWatch::default(), Drift::new(&model).unwrap());
        watch.look(&drift, began);
        (0..5_000).for_each(|_| drift.observe(&values, 0.0));
        assert!(!watch.look(&drift, began + WINDOW / 2).is_whole);
        assert!(watch.look(&drift, began + WINDOW).is_whole);
    }
}
