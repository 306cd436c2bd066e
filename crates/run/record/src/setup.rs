//! What every recording needs, whatever its input.

pub(crate) mod configuration;
pub(crate) mod cpus;
pub(crate) mod destination;
pub(crate) mod log_dir;
pub(crate) mod memory;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use strata_blocks::BlockSink;
use strata_capture::live::CutTable;
use strata_control::Controller;
use strata_control::saved::Saved;
use strata_filter::Filter;
use strata_flow_export::{FlowRecords, Sending};
use strata_gpv_run::VectorTap;
use strata_pipeline::{
    Alerts, Classifier, Copies, DataPath, EnoughOfFlows, PacketLimit, Parts, Tap, TriggerOptions,
    Triggers, Worker, WorkerOptions,
};
use strata_policy::{DetailLoads, DetailSite, Mode, Survey};
use strata_role::{Notice, RoleError, Tell, require_valid};
use strata_send::Mirror;
use strata_sketch::{Sketch, TableSize};
use strata_store::{About, Room};
use strata_wire::{Counters, FlowKey, exact};

use crate::beside::exports::own::without;
use crate::beside::exports::{ExportQueue, Exporting, Exports};
use crate::beside::reclaim::Reclaim;
use crate::beside::reports::Reports;
use crate::error::{At as _, Result};
use crate::notice::RecordNotice;
use crate::setup::configuration::{Addresses, Configuration};
use crate::setup::destination::Recording;
use crate::setup::memory::Memory;
use crate::spec::{InputSpec, RecordSpec};

/// What a worker has in addition to modes and policies.
pub(crate) struct Equipment {
    sketch: Sketch,
    triggers: Triggers,
    copies: Option<Box<dyn Copies>>,
    enough: Option<Box<dyn EnoughOfFlows>>,
}

impl Equipment {
    /// Lets the kernel cut packets of flows that are kept in part, where it can.
    pub(crate) fn cut(&mut self, table: Option<CutTable>) {
        self.enough = table.map(|table| Box::new(CutInKernel(table)) as _);
    }
}

/// Mirrored copies, sent from an interface.
#[derive(Debug)]
struct Mirrored(Mirror);

impl Copies for Mirrored {
    fn send(&mut self, frames: &[&[u8]]) {
        self.0.send(frames);
    }

    fn sent(&self) -> Counters {
        self.0.sent()
    }

    fn lost(&self) -> Counters {
        self.0.lost()
    }
}

/// The kernel's cut table.
#[derive(Debug)]
struct CutInKernel(CutTable);

impl EnoughOfFlows for CutInKernel {
    fn keep_whole(&self, flow: &FlowKey) {
        self.0.keep_whole(flow);
    }

    fn cut(&self, flow: &FlowKey, bytes: u16) {
        self.0.cut(flow, bytes);
    }

    fn cut_at_once(&self, flow: &FlowKey, bytes: u16) {
        self.0.cut_at_once(flow, bytes);
    }
}

/// A recording whose workers can begin.
pub(crate) struct Started {
    pub(crate) recording: Recording,
    pub(crate) workers: Vec<Worker>,
    /// To be dropped when the workers have ended, which ends it.
    pub(crate) reports: Option<Reports>,
    /// As these.
    pub(crate) flows: Option<Sending>,
    /// As these.
    pub(crate) exporting: Option<Exporting>,
}

/// A spec with its files read, and what the threads of its recording share.
pub(crate) struct Setup {
    pub(crate) spec: RecordSpec,
    pub(crate) configuration: Configuration,
    pub(crate) addresses: Addresses,
    pub(crate) controller: Arc<Controller>,
    modes: Vec<Mode>,
    /// Where policies may export to.
    exports: Option<Exports>,
    /// Where flows go.
    flows: Option<FlowRecords>,
    /// The size of a worker's table of flows.
    table: TableSize,
    /// The alerts from `--eve`.
    pub(crate) alerts: Arc<Alerts>,
    /// Set to end the recording.
    pub(crate) stop: Arc<AtomicBool>,
    /// Asked by the writers of a log with a limit.
    pub(crate) room: OnceLock<Arc<dyn Room>>,
    pub(crate) tell: Tell,
}

impl Setup {
    /// Reads the files that the spec names. Everything that can fail comes first: a mistyped name
    /// must not leave a log behind.
    pub(crate) fn new(spec: RecordSpec, stop: Arc<AtomicBool>, tell: Tell) -> Result<Self> {
        let configuration = Configuration::read(&spec)?;
        // Before anything looks at a packet.
        let tunnels = configuration.tunnels.clone().put_in_force();
        tunnels.map_err(|error| RoleError::Refused(format!("[tunnels]: {error}")))?;
        let settings = configuration.settings(&spec);
        if let Some(shadow) = &spec.shadow {
            Classifier::check_shadow(&spec.model.model, &shadow.model)
                .map_err(|error| RoleError::Refused(format!("--shadow: {error}")))?;
        }
        let modes: Result<Vec<Mode>, _> = settings
            .modes
            .iter()
            .map(|name| Mode::by_name(name, &settings.own_modes))
            .collect();
        let modes = modes?;
        if spec.destination.is_nowhere() {
            spec.check_without_log()?;
        }
        let addresses = configuration.addresses(&spec.steering)?;
        let limit = spec.memory_max.or(configuration.memory_max()?);
        let table = memory::table_size(limit, memory::machine_bytes(), spec.workers()?)?;
        // A file waits while the table grows.
        let table = match spec.interfaces() {
            None => table.starting_small(),
            Some(_) => table,
        };
        let blocks = (spec.destination.blocks_bytes() as u64)
            .saturating_mul(u64::from(spec.workers()?))
            .saturating_add(spec.triggers.look_back_bytes);
        memory::room_for(blocks, "blocks (--block-size) and --look-back")?;
        for problem in configuration.doubts(&spec) {
            tell(&Notice::warning(problem));
        }
        let (saved, problems) = spec.destination.dir().map(Saved::load).unzip();
        for problem in problems.into_iter().flatten() {
            tell(&Notice::warning(problem));
        }
        let controller = Controller::with_saved(spec.model.model.clone(), settings, saved)?;
        let shadow = spec.shadow.as_ref().map(|shadow| shadow.model.name.clone());
        let board = spec.stream.as_ref().map(|stream| Arc::clone(&stream.board));
        let controller = controller.with_shadow(shadow).with_collector(board);
        let exports = configuration
            .export
            .clone()
            .map(Exports::open)
            .transpose()?;
        let flows = spec.flows_to.as_ref().map(FlowRecords::open).transpose();
        let flows = flows.at("--flows-to: the collector cannot be reached")?;
        Ok(Self {
            spec,
            configuration,
            addresses,
            exports,
            flows,
            controller: Arc::new(controller),
            modes,
            table,
            alerts: Arc::default(),
            stop,
            room: OnceLock::new(),
            tell,
        })
    }

    /// Has the writers of a log with a limit ask for room.
    pub(crate) fn ask(&self, reclaim: &Reclaim) {
        if let Some(room) = reclaim.room() {
            self.room.get_or_init(|| room);
        }
    }

    /// Reloads the configuration.
    pub(crate) fn reload(&self) -> Result<()> {
        let steering = &self.spec.steering;
        if steering.config.is_none() && steering.policy.is_none() {
            return Ok(());
        }
        let settings = Configuration::read(&self.spec)?.settings(&self.spec);
        let export = settings.export.clone();
        if let Some(exports) = &self.exports {
            exports.check(export.as_ref())?;
        }
        self.controller.reload(settings, "configuration")?;
        if let Some(exports) = &self.exports {
            exports.adopt(export.as_ref());
        }
        Ok(())
    }

    /// What interfaces capture: what the user asks for, but not what this recording sends.
    pub(crate) fn live_filter(&self) -> Result<Option<Filter>> {
        let mut tests = self.spec.destination.own_traffic()?;
        tests.extend(self.exports.iter().flat_map(Exports::own_traffic));
        if let Some(flows) = &self.flows {
            tests.push(flows.own_traffic().at("--flows-to")?);
        }
        let filter = self.spec.filter.as_ref();
        Ok(without(tests, filter, self.spec.interface_names())?)
    }

    /// The full-capture triggers of each worker.
    pub(crate) fn triggers(&self, workers: u16) -> Result<TriggerOptions> {
        let options = self.spec.triggers.options(workers, &self.alerts)?;
        let has_log = self.spec.destination.dir().is_some();
        require_valid(options.look_back_bytes == 0 || has_log, || {
            String::from(
                "--look-back needs a log on this machine: packets at a relay cannot be changed \
                 afterwards",
            )
        })?;
        let mirror = self.spec.mirror_to.as_deref();
        if let Some(name) = mirror.filter(|name| self.spec.captures(name)) {
            let problem = "copies that leave there would be captured again";
            return Err(RoleError::Refused(format!("--mirror-to {name}: {problem}")).into());
        }
        Ok(options)
    }

    /// What each worker has in addition to modes and policies. Takes a while, and privileges, so it
    /// is done before packets arrive and before privileges are dropped.
    pub(crate) fn equip(&self) -> Result<Vec<Equipment>> {
        let model = &self.spec.model.model;
        let sketches = match self.spec.interfaces() {
            Some(interfaces) => memory::present(model, self.table, &interfaces.cores)?,
            // A file can wait, and may be small: memory is taken as flows come.
            None => {
                let sketch = model.new_sketch(self.table);
                vec![sketch.at("cannot allocate the table of flows (--memory)")?]
            }
        };
        let options = self.triggers(exact::<u16>(sketches.len()))?;
        let mirror = self.spec.mirror_to.as_deref();
        let copies = || -> Result<Option<Box<dyn Copies>>> {
            let opened = mirror.map(Mirror::open).transpose();
            let mirror = opened.at("--mirror-to")?;
            Ok(mirror.map(|mirror| Box::new(Mirrored(mirror)) as _))
        };
        let equipment = |sketch| {
            Ok(Equipment {
                sketch,
                copies: copies()?,
                triggers: Triggers::new(&options),
                enough: None,
            })
        };
        sketches.into_iter().map(equipment).collect()
    }

    /// How workers work that must evaluate this filter.
    pub(crate) fn options(&self, filter: Option<Filter>) -> WorkerOptions {
        let spec = &self.spec;
        WorkerOptions {
            modes: self.modes.clone(),
            filter,
            dedup: spec.dedup,
            tunnel_key: spec.tunnel_key,
            hash_seed: spec.hash_seed,
            sampling_seed: spec.sampling_seed,
        }
    }

    /// Starts the recording with a worker for each of `equipment`; `filter` is what they must
    /// evaluate, and `survey` what is to come, if that is known.
    pub(crate) fn start(
        &self,
        filter: Option<Filter>,
        equipment: Vec<Equipment>,
        survey: Option<&Survey>,
    ) -> Result<Started> {
        let spec = &self.spec;
        let path = DataPath::chosen()?;
        if spec.model.is_built_in && spec.destination.is_nowhere() {
            if self.exports.is_some() {
                (self.tell)(&RecordNotice::BuiltInModelOfExports.into());
            }
        } else if spec.model.is_built_in {
            let plan = self.controller.steering().plan();
            let budget = plan.detail().map(|detail| detail.budget);
            (self.tell)(&RecordNotice::BuiltInModel(budget).into());
        }
        let about = self.about(&equipment);
        let workers = exact::<u16>(equipment.len());
        let started = spec.destination.start(
            &about,
            workers,
            (&self.controller, self.room.get().cloned()),
            &self.stop,
            &self.tell,
        );
        let (recording, sinks) = started?;
        let options = self.options(filter);
        // While interfaces are captured, no thread waits for memory.
        let memory = spec.interfaces().map(|_| Memory::start()).transpose()?;
        let limit = spec.packets_max.map(PacketLimit::new).map(Arc::new);
        let loads = (workers > 1).then(|| DetailLoads::new(usize::from(workers)));
        let seed = getrandom::u64().map_err(|error| RoleError::Refused(error.to_string()))?;
        let shadow = spec.shadow.as_ref();
        let shadow = shadow.map(|shadow| Arc::new(shadow.model.clone()));
        let waits = spec.interfaces().is_none();
        let exports = self.exports.as_ref();
        let started = exports.map(|exports| {
            let count = usize::from(workers);
            exports.start(count, &self.controller, waits, &self.tell)
        });
        let (exporting, queues) = started.transpose()?.unzip();
        let mut queues = queues.unwrap_or_else(Vec::new).into_iter();
        let flows = self.flows.as_ref();
        let started =
            flows.map(|to| to.start(workers, spec.hash_seed, &self.controller, waits, &self.tell));
        let (flows, flow_taps) = started.transpose().at("--flows-to")?.unzip();
        let mut flow_taps = flow_taps.unwrap_or_else(Vec::new).into_iter();
        let worker = |(number, (sink, equipment)): (u32, (BlockSink, Equipment))| {
            let vectors = VectorTap::new(self.controller.subscribers(), number, seed);
            let mut taps: Vec<Box<dyn Tap>> = vec![Box::new(vectors)];
            taps.extend(flow_taps.next().map(|tap| Box::new(tap) as _));
            let parts = Parts {
                options: options.clone(),
                path,
                sink: Box::new(sink),
                sketch: Some(equipment.sketch),
                memory: memory.clone().map(|memory| Box::new(memory) as _),
                steering: Some(Arc::clone(self.controller.steering())),
                triggers: Some(equipment.triggers),
                limit: limit.clone(),
                copies: equipment.copies,
                enough: equipment.enough,
                taps,
                exports: queues.next().map(|queue: ExportQueue| Box::new(queue) as _),
                detail: DetailSite {
                    load: loads.clone().map(|loads| (loads, exact::<usize>(number))),
                    survey: survey.cloned(),
                },
                shadow: shadow.clone(),
            };
            Ok(Worker::new(&spec.model.model, parts)?)
        };
        let workers: Result<Vec<Worker>> = (0..)
            .zip(sinks.into_iter().zip(equipment))
            .map(worker)
            .collect();
        let report =
            |to| Reports::start(to, &self.controller, &spec.model.model, waits, &self.tell);
        Ok(Started {
            reports: spec.report_to.map(report).transpose()?,
            flows,
            exporting,
            recording,
            workers: workers?,
        })
    }

    /// The description of the recording in the log.
    fn about(&self, equipment: &[Equipment]) -> About {
        let spec = &self.spec;
        About {
            program: concat!("strata ", env!("CARGO_PKG_VERSION")).into(),
            inputs: match (&spec.stream, &spec.input) {
                (Some(stream), _) => vec![stream.name.clone()],
                (None, InputSpec::Files(paths)) => paths
                    .iter()
                    .map(|path| path.display().to_string())
                    .collect(),
                (None, InputSpec::Interfaces(interfaces)) => interfaces.capture.interfaces.clone(),
            },
            filter: spec.filter_text.clone(),
            mode: self.controller.steering().plan().mode_name().to_owned(),
            model: spec.model.model.name.clone(),
            model_json: spec.model.json.clone(),
            shadow: spec
                .shadow
                .as_ref()
                .map(|shadow| (shadow.model.name.clone(), shadow.json.clone())),
            classes: spec.model.model.class_names(),
            hash_seed: spec.hash_seed,
            look_back: equipment.iter().any(|e| e.triggers.looks_back()),
            live: spec.interfaces().is_some(),
        }
    }
}
