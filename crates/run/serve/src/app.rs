//! What all requests share.

use std::net::SocketAddr;
use std::sync::Arc;

use strata_log_views::logs::Logs;
use strata_log_views::search::results::Searches;
use strata_log_views::work::Work;

use crate::Spec;
use crate::access::audit::Audit;
use crate::access::trust::Gate;
use crate::fleet::Controller;
use crate::recorders::{Recorder, Ticks, ticks};
use crate::saved::Saved;

/// The state of the server.
pub(crate) struct App {
    pub(crate) spec: Spec,
    pub(crate) gate: Arc<Gate>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) logs: Logs,
    pub(crate) recorders: Vec<Arc<Recorder>>,
    pub(crate) fleet: Option<Arc<Controller>>,
    pub(crate) searches: Searches,
    pub(crate) saved: Saved,
    pub(crate) work: Work,
    pub(crate) ticks: Ticks,
}

impl App {
    pub(crate) fn new(spec: Spec, address: SocketAddr) -> Self {
        let sockets = spec.sockets.iter().enumerate();
        let recorders = sockets.map(|(id, socket)| Arc::new(Recorder::new(id, socket)));
        let (open, open_stored) = (Arc::clone(&spec.open), Arc::clone(&spec.open_stored));
        let audit = Arc::new(Audit::new(Arc::clone(&spec.audit)));
        let login = (spec.login.clone(), Arc::clone(&audit));
        Self {
            gate: Arc::new(Gate::new(login, address, spec.tls.is_some())),
            audit,
            logs: Logs::new(&spec.logs, open, open_stored),
            recorders: recorders.collect(),
            fleet: spec.fleet.as_deref().map(Controller::new).map(Arc::new),
            searches: Searches::default(),
            saved: Saved::new(spec.state.clone()),
            work: Work::default(),
            ticks: ticks(),
            spec,
        }
    }
}
