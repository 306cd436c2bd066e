//! The configuration of a recording: its file, read once at start and once per reload, and what
//! overrides it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use strata_capture::live::Device;
use strata_control::alerts::{AlertSender, Webhook};
use strata_control::api::{Endpoints, Server, TcpEndpoint, serve};
use strata_control::config::{Config, ExportPlan, OnDrift};
use strata_control::{Controller, Settings, client};
use strata_exporter::Channel;
use strata_policy::{DetailBudget, Mode, ModeConfig};
use strata_role::sandbox::Reach;
use strata_role::{RoleError, Tell, require_valid};
use strata_rules::{Action, Policy};
use strata_sandbox::{Owner, SocketFile};
use strata_wire::Keep;
use strata_wire::tunnel::Tunnels;

use crate::beside::lag::LAG_MAX;
use crate::error::{At as _, Result};
use crate::notice::RecordNotice;
use crate::spec::{DetailSpec, RecordSpec, SteeringSpec};

/// The contents of the files, checked.
pub(crate) struct Configuration {
    file: Config,
    path: PathBuf,
    policies: Vec<Policy>,
    default: Action,
    /// The budget of detail that the file names, or that of the model.
    detail: Option<DetailBudget>,
    /// Where policies may export to.
    pub(crate) export: Option<ExportPlan>,
    /// UDP ports of tunnels.
    pub(crate) tunnels: Tunnels,
}

/// Where to serve the API and send alerts.
pub(crate) struct Addresses {
    /// The requested socket; without its default one a recording carries on.
    pub(crate) socket: Option<PathBuf>,
    pub(crate) tcp: Option<TcpEndpoint>,
    pub(crate) webhook: Option<Webhook>,
    /// How long a complete block file may wait for compaction.
    pub(crate) compaction_lag: Duration,
}

/// The mode of a recording without a log.
const NO_LOG: &str = "no-log";

fn keeps_nothing() -> ModeConfig {
    ModeConfig {
        benign: "drop".into(),
        anomalous: "drop".into(),
        classes: BTreeMap::new(),
    }
}

impl Configuration {
    /// Reads the files.
    pub(crate) fn read(of: &RecordSpec) -> Result<Self> {
        let read = Self::read_files(of)?;
        require_valid(
            !of.destination.is_nowhere() || read.export.is_some() || of.flows_to.is_some(),
            || {
                String::from(
                    "no destination: name a directory for the log (-o DIR), a collector of flows \
                     (--flows-to HOST), or destinations for exports of policies, under \
                     [export.destinations] of the configuration (--config)",
                )
            },
        )?;
        let must_reach = read.export.as_ref().is_none_or(|plan| plan.must_reach);
        require_valid(of.destination.is_nowhere() || must_reach, || {
            String::from(
                "export.addresses applies only to a recording without a log, because a log would \
                 contain the packets sent to a new address: leave it out, or record without -o",
            )
        })?;
        Ok(read)
    }

    fn read_files(of: &RecordSpec) -> Result<Self> {
        let spec = &of.steering;
        let path = spec.config.as_deref().unwrap_or(Path::new(""));
        let file = match &spec.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        let mut policies = file.policies(path)?;
        let mut default = file.default_action(path)?;
        let default_detail = of
            .model
            .is_built_in
            .then_some(DetailBudget::OF_BUILT_IN_MODEL);
        let detail = file.detail(path, default_detail)?;
        if let Some(path) = &spec.policy {
            let more = Config::read(path)?;
            policies.extend(more.policies(path)?);
            if more.default.is_some() {
                default = more.default_action(path)?;
            }
        }
        let mut named = spec.tunnel_ports.iter();
        let tunnels = named.try_fold(file.tunnels(path)?, |table, text| {
            let added = table.and_text(text);
            added.map_err(|error| RoleError::Invalid(format!("--tunnel-port: {error}")))
        });
        Ok(Self {
            tunnels: tunnels?,
            export: file.export_plan(path)?,
            file,
            path: path.into(),
            detail,
            policies,
            default: spec.default.unwrap_or(default),
        })
    }

    /// The initial or reloaded settings of a recording: the spec overrides the files.
    pub(crate) fn settings(&self, spec: &RecordSpec) -> Settings {
        let mut modes = spec.modes.clone();
        if modes.is_empty() {
            modes.clone_from(&self.file.mode);
        }
        if modes.is_empty() {
            modes.push(String::from("default"));
        }
        let elastic = &self.file.elastic;
        let interfaces = spec.interfaces();
        let cpu_budget = interfaces.and_then(|interfaces| {
            let configured = elastic.cpu_budget_percent.map(|percent| percent / 100.0);
            interfaces.cpu_budget.or(configured)
        });
        // Recording a file waits for the disk, so nothing runs short.
        let answers = elastic.enabled && interfaces.is_some() && !spec.destination.is_nowhere();
        let mut own_modes = self.file.modes.clone();
        let only_exports = spec.destination.is_nowhere();
        if only_exports {
            modes = vec![NO_LOG.to_owned()];
            own_modes.insert(NO_LOG.to_owned(), keeps_nothing());
        }
        Settings {
            log: spec.destination.name(),
            modes,
            own_modes,
            only_exports,
            policies: self.policies.clone(),
            default: Some(self.default),
            can_mirror: spec.mirror_to.is_some(),
            export: self.export.clone(),
            can_rotate: spec.destination.dir().is_some(),
            ends_when_full: spec.destination.ends_when_full(),
            elastic: answers.then(|| elastic.options()),
            cpu_budget,
            // A recording of files is the same each time.
            on_drift: match interfaces {
                Some(_) if !only_exports => self.file.on_drift,
                _ => OnDrift::Warn,
            },
            detail: match spec.detail {
                _ if only_exports => None,
                DetailSpec::Asked(budget) => budget,
                DetailSpec::Configured => self.detail,
            },
        }
    }

    /// Maximum bytes of the tables of flows, if the file says so.
    pub(crate) fn memory_max(&self) -> Result<Option<u64>> {
        Ok(self.file.memory_max(&self.path)?)
    }

    /// Destinations that policies send payload to and that nothing encrypts.
    fn in_clear(&self) -> Vec<String> {
        let destinations = self.export.iter().flat_map(|plan| &plan.destinations);
        let vxlan = destinations.filter(|to| to.destination.channel == Channel::Vxlan);
        let used = vxlan.filter(|to| {
            let mut actions = self.policies.iter().map(|policy| policy.action);
            actions.any(|action| matches!(action, Action::Export(export) if export.to == to.name))
        });
        used.map(|to| {
            format!(
                "policies send payload to {}, {}, unencrypted: VXLAN is never encrypted; use a \
                 network that only you can read, or a tunnel such as WireGuard",
                to.name, to.destination
            )
        })
        .collect()
    }

    /// What is valid, but hardly meant.
    pub(crate) fn doubts(&self, spec: &RecordSpec) -> Vec<String> {
        let mut doubts = Vec::new();
        for name in self.file.modes.keys() {
            let mode = Mode::by_name(name, &self.file.modes).ok();
            let kept = mode.and_then(|mode| mode.granularities(&spec.model.model).ok());
            if kept.is_some_and(|kept| kept.iter().all(|kept| kept.keep == Keep::Nothing)) {
                doubts.push(format!(
                    "mode {name} drops every class: while it is active, only packets that a \
                     policy, --first-bytes or an alert keeps are recorded"
                ));
            }
        }
        doubts.extend(self.in_clear());
        doubts.extend(self.file.control.open_in_clear().map(|address| {
            format!(
                "control.listen is {address}, which other machines can reach, without TLS: anyone \
                 who reads the traffic on the way learns the token, and can then change the recording; \
                 set tls_cert and tls_key, or listen on 127.0.0.1"
            )
        }));
        if spec.interfaces().is_some() {
            let never = self.file.elastic.never_short().into_iter();
            doubts.extend(never.map(|(key, percent)| {
                format!(
                    "elastic.{key} is {percent} %, which is never reached: this shortage is not \
                     noticed; write at most 100 to notice it"
                )
            }));
            let named = self.policies.iter().filter_map(|p| p.interface.as_ref());
            let unseen = named.filter(|name| !spec.captures(name) || Device::named(name).is_err());
            let unseen: BTreeSet<&String> = unseen.collect();
            doubts.extend(unseen.into_iter().map(|name| {
                format!(
                    "a policy is for interface {name}, which this recording does not capture: the \
                     policy matches nothing"
                )
            }));
        }
        doubts
    }

    /// Where to serve the API and send alerts.
    pub(crate) fn addresses(&self, spec: &SteeringSpec) -> Result<Addresses> {
        let control = &self.file.control;
        Ok(Addresses {
            socket: spec.socket.clone().or_else(|| control.socket.clone()),
            tcp: control.tcp()?,
            webhook: Webhook::of(&self.file.alerts),
            compaction_lag: self
                .file
                .alerts
                .compaction_lag_seconds
                .map_or(LAG_MAX, Duration::from_secs),
        })
    }

    /// What a recording can access once its socket is created.
    pub(crate) fn reach(&self, spec: &RecordSpec, socket: Option<&SocketFile>) -> Reach {
        let (control, alerts) = (&self.file.control, &self.file.alerts);
        let files = [
            &spec.steering.config,
            &spec.steering.policy,
            &control.token_file,
            &alerts.token_file,
            &alerts.ca_file,
            &self.file.export.key_file,
        ];
        let files = files.into_iter().flatten().cloned();
        Reach {
            home: spec.destination.dir().map(Path::to_owned),
            delete: socket
                .and_then(SocketFile::own_dirs)
                .into_iter()
                .flatten()
                .collect(),
            again: files
                .chain(spec.triggers.followed())
                .chain(spec.destination.reads())
                .collect(),
            interfaces: spec.interface_names().to_vec(),
            ..Reach::default()
        }
    }
}

impl Addresses {
    /// Creates the API's socket, if wanted.
    pub(crate) fn bind(
        &self,
        spec: &RecordSpec,
        owner: &Owner,
        tell: &Tell,
    ) -> Result<Option<SocketFile>> {
        if let Some(path) = &self.socket {
            return Ok(Some(SocketFile::bind(path, owner)?));
        }
        let own = match (spec.interfaces(), &spec.stream) {
            (Some(_), _) => client::own_socket(owner),
            (None, Some(_)) => client::own_collector_socket(owner),
            (None, None) => return Ok(None),
        };
        // It was not requested, and the recording matters more.
        Ok(own
            .inspect_err(|error| tell(&RecordNotice::NoSteering(error.to_string()).into()))
            .ok())
    }

    /// Serves the API, if wanted.
    pub(crate) fn serve(
        &self,
        controller: &Arc<Controller>,
        socket: Option<SocketFile>,
    ) -> Result<Option<Server>> {
        let tcp = self.tcp.clone();
        if socket.is_none() && tcp.is_none() {
            return Ok(None);
        }
        let endpoints = Endpoints { socket, tcp };
        Ok(Some(serve(Arc::clone(controller), endpoints)?))
    }

    /// Sends alerts about this log, if wanted.
    pub(crate) fn alerts(&self, log: String) -> Result<Option<AlertSender>> {
        let Some(webhook) = &self.webhook else {
            return Ok(None);
        };
        let alerts = AlertSender::start(webhook, log);
        Ok(Some(alerts.at("alerts.webhook")?))
    }
}
