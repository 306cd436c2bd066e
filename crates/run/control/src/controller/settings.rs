//! The settings of a recording.

use std::collections::BTreeMap;
use std::ops::Range;

use strata_policy::{DetailBudget, ModeConfig};
use strata_rules::{Action, Policy};

use super::inner::Asked;
use super::timed::Timed;
use crate::config::{ALWAYS, ExportPlan, OnDrift};
use crate::elastic::ElasticOptions;

/// The settings of a recording: at its start, or as reloaded.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The directory of the log, as shown.
    pub log: String,
    /// Names of the modes.
    pub modes: Vec<String>,
    /// Custom modes.
    pub own_modes: BTreeMap<String, ModeConfig>,
    /// Policies.
    pub policies: Vec<Policy>,
    /// The action for packets that no policy matches.
    pub default: Option<Action>,
    /// Whether policies may mirror packets.
    pub can_mirror: bool,
    /// Where policies may export to; `None` for nowhere.
    pub export: Option<ExportPlan>,
    /// Whether the log has files on this machine, so that new ones can be started.
    pub can_rotate: bool,
    /// Whether a full disk ends the recording (`--when-full stop`).
    pub ends_when_full: bool,
    /// Whether there is no log, so that no policy or mode may keep packets.
    pub only_exports: bool,
    /// How shortages are answered; `None` if not at all.
    pub elastic: Option<ElasticOptions>,
    /// Cores that the process may use; `None` for no limit.
    pub cpu_budget: Option<f64>,
    /// The budget of detail; `None` for none.
    pub detail: Option<DetailBudget>,
    /// What to do while the model does not fit.
    pub on_drift: OnDrift,
}

impl Settings {
    /// Packets of which times are exported.
    pub(super) fn export_times(&self) -> Range<u64> {
        let export = self.export.as_ref();
        export.map_or(ALWAYS, |plan| plan.from..ALWAYS.end)
    }

    /// The requested settings, and the policies.
    pub(super) fn into_asked(self) -> (Asked, Vec<Policy>) {
        let asked = Asked {
            own_modes: self.own_modes,
            modes: self.modes,
            timed: Timed::default(),
            default: self.default.unwrap_or(Action::CLASSIFY),
            elastic: self.elastic,
            cpu_budget: self.cpu_budget,
            detail: self.detail,
            on_drift: self.on_drift,
            is_drifted: false,
            promoted: None,
            lowers_detail: false,
            ends_when_full: self.ends_when_full,
        };
        (asked, self.policies)
    }
}
