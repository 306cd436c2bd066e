//! The specification of a role: plain data, with nothing opened and nothing read.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use strata_capture::live::LiveOptions;
use strata_classify::Model;
use strata_control::CollectorBoard;
use strata_filter::Filter;
use strata_flow_export::FlowsSpec;
use strata_pipeline::Dedup;
use strata_policy::DetailBudget;
use strata_relay::LinkOptions;
use strata_role::sandbox::Reach;
use strata_role::{Result, RoleError};
use strata_rules::Action;
use strata_sandbox::Group;
use strata_store::{DiskChoice, RecorderOptions};
use strata_wire::TunnelKey;

/// A recording: what to record, how to classify it and where to store it.
#[derive(Clone, Debug)]
pub struct RecordSpec {
    /// Where packets come from.
    pub input: InputSpec,
    /// Where they go.
    pub destination: DestinationSpec,
    /// The part of this process that writes the only file of the input, a pipe; `None` for other inputs.
    pub stream: Option<StreamSpec>,
    /// Which packets are captured; `None` for all.
    pub filter: Option<Filter>,
    /// The filter as the user wrote it, for the log.
    pub filter_text: String,
    /// Which packets are duplicates, of which one is recorded; `None` to record all.
    pub dedup: Option<Dedup>,
    /// The classifier.
    pub model: ModelSpec,
    /// Another model: what it would have kept is compared, and changes nothing.
    pub shadow: Option<ShadowSpec>,
    /// Names of the modes; without any, those of the configuration file, or `default`.
    pub modes: Vec<String>,
    /// The budget of detail.
    pub detail: DetailSpec,
    /// What to keep whole in addition to modes and policies.
    pub triggers: TriggerSpec,
    /// The interface from which mirrored copies are sent.
    pub mirror_to: Option<String>,
    /// The telemetry collector that gets reports of what is recorded.
    pub report_to: Option<SocketAddr>,
    /// The collector of flows that gets the flows of what is recorded.
    pub flows_to: Option<FlowsSpec>,
    /// Maximum bytes of the tables of flows, of all workers together; without it, what the configuration file says,
    /// else a sixteenth of the machine's memory.
    pub memory_max: Option<u64>,
    /// Configuration, policies and API.
    pub steering: SteeringSpec,
    /// Which flow a tunnelled packet belongs to.
    pub tunnel_key: TunnelKey,
    /// Key of flow fingerprints.
    pub hash_seed: [u64; 2],
    /// Seeds the choice of packets that sampled granularities keep.
    pub sampling_seed: u64,
    /// End after this many packets have passed the filter.
    pub packets_max: Option<u64>,
}

/// The model in the shadow of the one at work.
#[derive(Clone, Debug)]
pub struct ShadowSpec {
    /// The model.
    pub model: Model,
    /// Its file's content, for the log.
    pub json: Vec<u8>,
}

/// The budget of detail of a recording.
#[derive(Clone, Copy, Debug, Default)]
pub enum DetailSpec {
    /// That of the configuration file, else a tenth with the built-in model, else none.
    #[default]
    Configured,
    /// This one, or none.
    Asked(Option<DetailBudget>),
}

/// Where packets come from.
#[derive(Clone, Debug)]
pub enum InputSpec {
    /// Capture files, merged in time order; `-` is standard input.
    Files(Vec<PathBuf>),
    /// Interfaces, until stopped.
    Interfaces(Box<InterfaceSpec>),
}

/// A part of this process that receives packets, and writes them into a pipe that is recorded: a collector.
#[derive(Clone, Debug)]
pub struct StreamSpec {
    /// What the log calls its input.
    pub name: String,
    /// Where that part publishes its status.
    pub board: Arc<CollectorBoard>,
    /// What that part still needs once the recording has started, of `write` and `again`; `None` for no sandbox.
    pub reach: Option<Reach>,
}

/// How interfaces are captured.
#[derive(Clone, Debug)]
pub struct InterfaceSpec {
    /// Interfaces and rings. Filter, sampling and opener are set by the node.
    pub capture: LiveOptions,
    /// One worker for each of these: the CPU that it is pinned to, if any. At least one.
    pub cores: Vec<Option<usize>>,
    /// Whether packets have the processes of this host that send and receive them, as comments.
    pub processes: bool,
    /// Cores that the process may use; without it, what the configuration file says.
    pub cpu_budget: Option<f64>,
    /// Whether it uses less than that while its CPUs are short for others.
    pub gives_way: bool,
    /// What is given up first when packets are lost.
    pub shed: Shed,
    /// What to drop once interfaces are open; `None` for nothing.
    pub sandbox: Option<SandboxSpec>,
    /// End after this time.
    pub duration: Option<Duration>,
}

/// What is given up first when packets are lost because CPUs are short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shed {
    /// Payload, except in the mode `log-all`.
    #[default]
    Auto,
    /// Payload: fewer bytes of each packet are copied.
    Payload,
    /// Packets: those that are captured are whole.
    Packets,
}

/// The privileges that a recording keeps.
#[derive(Clone, Debug)]
pub struct SandboxSpec {
    /// The user to change to.
    pub user: Option<String>,
    /// The arguments with which this program only runs
    /// [`sandbox::open_sockets`](strata_role::sandbox::open_sockets). A process started with them reopens
    /// an interface that comes back.
    pub helper: Vec<String>,
}

/// Where packets go.
#[derive(Clone, Debug)]
pub enum DestinationSpec {
    /// Into a log on this machine.
    Log(Box<LogSpec>),
    /// To a relay. The node sets what is recorded, the worker and when to stop.
    Relay(Box<LinkOptions>),
    /// Nowhere: the recording only exports.
    Nowhere,
}

/// A log on this machine, and how it is written.
#[derive(Clone, Debug)]
pub struct LogSpec {
    /// Its directory; created if need be.
    pub dir: PathBuf,
    /// Blocks and files. The node sets what writer threads drop.
    pub recorder: RecorderOptions,
    /// How blocks go to the disk.
    pub disk: DiskChoice,
    /// Size limit of the log in bytes while interfaces are captured.
    pub bytes_max: Option<u64>,
    /// The group whose members may read it.
    pub group: Option<Group>,
}

/// A model and its source.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// The model.
    pub model: Model,
    /// The bytes of its file, which are stored in the log.
    pub json: Vec<u8>,
    /// Whether it is the default.
    pub is_built_in: bool,
}

/// What to keep whole in addition to modes and policies.
#[derive(Clone, Debug, Default)]
pub struct TriggerSpec {
    /// Memory for the latest packets, of all workers together; 0 for none.
    pub look_back_bytes: u64,
    /// Packets that begin within this many bytes of their flow are kept whole; 0 for none.
    pub first_bytes: u64,
    /// Suricata's eve.json, or the Unix socket to create for it; several are taken together.
    pub eve: Vec<PathBuf>,
}

/// Configuration, policies and API.
#[derive(Clone, Debug, Default)]
pub struct SteeringSpec {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// A file of the same format, of which only policies and default are used.
    pub policy: Option<PathBuf>,
    /// Action for packets that no policy matches; it overrides the files.
    pub default: Option<Action>,
    /// The Unix socket of the API; it overrides the configuration file.
    pub socket: Option<PathBuf>,
    /// UDP ports of tunnels in addition to those of the configuration file, as `NAME=PORT`.
    pub tunnel_ports: Vec<String>,
}

impl InterfaceSpec {
    /// How many workers it has.
    pub(crate) fn workers(&self) -> Result<u16> {
        let count = self.cores.len();
        u16::try_from(count).map_err(|_| {
            RoleError::Invalid(format!(
                "--cores: {count} workers; at most 65535 are allowed"
            ))
        })
    }
}

impl RecordSpec {
    /// Whether nothing is to be recorded: it is for a check of the configuration.
    pub(crate) fn has_no_input(&self) -> bool {
        matches!(&self.input, InputSpec::Files(files) if files.is_empty())
    }

    /// Refuses what says how much to keep, if nothing is kept.
    pub(crate) fn check_without_log(&self) -> Result<()> {
        let asked = [
            ("--mode", !self.modes.is_empty()),
            (
                "--detail",
                matches!(self.detail, DetailSpec::Asked(Some(_))),
            ),
            ("--look-back", self.triggers.look_back_bytes > 0),
            ("--first-bytes", self.triggers.first_bytes > 0),
            ("--eve", !self.triggers.eve.is_empty()),
        ];
        match asked.into_iter().find(|(_, is_asked)| *is_asked) {
            None => Ok(()),
            Some((option, _)) => Err(RoleError::Invalid(format!(
                "{option} applies to a log, and this recording has none: add -o DIR"
            ))),
        }
    }

    /// How many workers it has.
    pub(crate) fn workers(&self) -> Result<u16> {
        self.interfaces().map_or(Ok(1), InterfaceSpec::workers)
    }

    /// How interfaces are captured, if any.
    pub(crate) fn interfaces(&self) -> Option<&InterfaceSpec> {
        match &self.input {
            InputSpec::Interfaces(interfaces) => Some(interfaces),
            InputSpec::Files(_) => None,
        }
    }

    /// Names of the captured interfaces.
    pub(crate) fn interface_names(&self) -> &[String] {
        self.interfaces()
            .map_or(&[], |interfaces| &interfaces.capture.interfaces)
    }

    /// Whether an interface of this name is captured.
    pub(crate) fn captures(&self, name: &str) -> bool {
        let mut names = self.interface_names().iter();
        names.any(|captured| captured == name || captured == strata_capture::live::ANY)
    }
}
