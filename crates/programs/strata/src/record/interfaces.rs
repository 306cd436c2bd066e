//! Arguments of `strata record` for interfaces.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::thread::CpuSet;
use strata_capture::live::{Direction, Exclusive, LiveOptions, Rings, Stamps};
use strata_record::{InterfaceSpec, SandboxSpec, Shed};
use strata_terminal::confined::NetnsArgs;
use strata_terminal::output::refuse;
use strata_terminal::rings::{RingsArg, percent};
use strata_terminal::text;
use strata_terminal::text::warn;

/// Most bytes captured of a packet, as in tcpdump and libpcap.
const SNAPLEN_MAX: i64 = 262_144;

/// Arguments of `strata record` for interfaces.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Interfaces")]
pub(super) struct InterfaceArgs {
    /// Capture from this interface, until Ctrl-C; several are separated by commas; any means all of
    /// them. `strata interfaces` lists them.
    #[arg(
        short = 'i',
        long = "interface",
        value_name = "NAME",
        value_delimiter = ',',
        id = "interface",
        group = "input",
        conflicts_with = "read"
    )]
    pub(super) interfaces: Vec<String>,

    #[command(flatten)]
    pub(super) netns: NetnsArgs,

    /// Don't put the interface into promiscuous mode.
    #[arg(short = 'p', long = "no-promiscuous-mode")]
    no_promiscuous: bool,

    /// Capture at most this many bytes of each packet; 0 means the default.
    #[arg(short = 's', long = "snapshot-length", value_name = "BYTES", default_value_t = LiveOptions::SNAPLEN_DEFAULT,
        value_parser = clap::value_parser!(u32).range(..=SNAPLEN_MAX))]
    snaplen: u32,

    /// Set the size of each interface's ring in KiB, or with a unit (256MiB). By default a fifth of
    /// a second at the link's rate.
    #[arg(short = 'B', long = "buffer-size", value_name = "KIB")]
    buffer_size: Option<String>,

    /// Use one ring per interface (each), or one for all interfaces together (one), with the memory
    /// of -B for each interface, up to 64 MiB. By default, one with 128 interfaces or more.
    /// Interfaces without Ethernet header, the loopback interface and those with timestamps of the
    /// NIC always have their own ring.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = RingsArg::Auto)]
    rings: RingsArg,

    /// Deliver packets within a millisecond rather than ten.
    #[arg(long)]
    immediate_mode: bool,

    /// Capture packets of this direction: in, out or inout.
    #[arg(short = 'Q', long, value_enum, default_value_t = Way::Inout)]
    direction: Way,

    /// Take timestamps from this clock: adapter (the NIC's), host (the kernel's), or auto (the
    /// NIC's if the NIC stamps every packet and its clock agrees with this host's, else the
    /// kernel's).
    #[arg(short = 'j', long = "time-stamp-type", value_enum, value_name = "TYPE", default_value_t = StampsArg::Auto)]
    stamps: StampsArg,

    /// Run on these CPUs, one worker each, with flows spread among them: 1,2 or 2-5. By default one
    /// worker, wherever the system schedules it.
    #[arg(long, value_name = "CPUS")]
    cores: Option<String>,

    /// Take the packets away from this host, with AF_XDP: faster, but nothing else on this host
    /// receives packets that pass the filter, not even your own remote session. For mirror ports
    /// and taps. Sees received packets only. With =auto, only from interfaces whose driver has XDP
    /// and that nothing else on this host uses when the recording starts: no address, no route, no
    /// bridge or bond, no VLAN or macvlan on top, no XDP or tc program, and no packet socket. A
    /// program that begins to use one later receives nothing. Others are captured as usual.
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "always"
    )]
    exclusive: Option<ExclusiveArg>,

    /// Name the ports of one bridge: a packet that goes from one of them to another is captured
    /// where it enters, and not again where it leaves. Separated by commas; once for each bridge.
    #[arg(long, value_name = "NAMES")]
    bridge_ports: Vec<String>,

    /// Change to this user after opening the interfaces, as tcpdump does. The user will own the
    /// log.
    #[arg(
        short = 'Z',
        long = "relinquish-privileges",
        value_name = "USER",
        conflicts_with = "no_sandbox"
    )]
    user: Option<String>,

    /// Keep all privileges and access to all files, instead of dropping those that are not needed
    /// once the interfaces are open.
    #[arg(long)]
    no_sandbox: bool,

    /// Limit the CPU use of this process, as in 10%; 100% is one core. To stay within it, only a
    /// share of all flows is captured, as large as possible; skipped packets are counted
    /// (dropped{cpu_budget}), and the log records that share.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    cpu: Option<f64>,

    /// Use less than --cpu when the CPUs on which this process may run are short for other work,
    /// such as forwarding: first copy at most 256 bytes of each packet, then lower the budget step
    /// by step, down to a sixteenth. The budget is restored when CPU time is free again.
    #[arg(long, requires = "cpu")]
    give_way: bool,

    /// Choose what to give up first while packets are lost for lack of CPU time: payload (copy at
    /// most 256 bytes of each packet until CPU time is free again), packets (lose some, copy the
    /// others whole), or auto (payload, except in mode log-all). Without eBPF, packets are always
    /// copied whole.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = ShedArg::Auto)]
    shed: ShedArg,

    /// Let the kernel copy only the headers of flows that are confidently kept as headers. Saves
    /// copying long packets; on a busy core, and with packets of less than a thousand bytes, the
    /// lookups can cost more than they save. Packets that turn out to be wanted whole are counted
    /// (wanted_but_cut).
    #[arg(long, conflicts_with = "look_back", conflicts_with = "first_bytes")]
    early_cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Way {
    In,
    Out,
    Inout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ExclusiveArg {
    Always,
    Auto,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ShedArg {
    Auto,
    Payload,
    Packets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum StampsArg {
    Auto,
    Host,
    Adapter,
}

impl InterfaceArgs {
    /// Whether there is something to capture.
    pub(super) fn is_any_named(&self) -> bool {
        !self.interfaces.is_empty()
    }

    /// How interfaces are captured, for at most this long.
    pub(super) fn spec(&self, duration: Option<Duration>) -> Result<InterfaceSpec> {
        let cores = match &self.cores {
            Some(text) => cores(text)?.into_iter().map(Some).collect(),
            None => vec![None],
        };
        Ok(InterfaceSpec {
            capture: self.capture()?,
            cores,
            cpu_budget: self.cpu.map(|percent| percent / 100.0),
            gives_way: self.give_way,
            shed: match self.shed {
                ShedArg::Auto => Shed::Auto,
                ShedArg::Payload => Shed::Payload,
                ShedArg::Packets => Shed::Packets,
            },
            sandbox: (!self.no_sandbox).then(|| self.sandbox()),
            duration,
        })
    }

    /// Refuses what has no meaning for capture files. What tcpdump accepts then without a word is
    /// accepted too, with a warning.
    pub(super) fn check_for_files(&self) -> Result<()> {
        only_live(&[
            ("--netns", self.netns.is_given()),
            ("--cores", self.cores.is_some()),
            ("--exclusive", self.exclusive.is_some()),
            ("--cpu", self.cpu.is_some()),
            ("--give-way", self.give_way),
            ("--shed", self.shed != ShedArg::Auto),
            ("--early-cut", self.early_cut),
            ("--bridge-ports", !self.bridge_ports.is_empty()),
            ("--rings", self.rings != RingsArg::Auto),
        ])?;
        let snaplen = self.snaplen != 0 && self.snaplen != LiveOptions::SNAPLEN_DEFAULT;
        for (option, given) in [
            ("-s", snaplen),
            ("-B", self.buffer_size.is_some()),
            ("-Q", self.direction != Way::Inout),
            ("-j", self.stamps != StampsArg::Auto),
            ("-Z", self.user.is_some()),
        ] {
            if given {
                warn(&format!("{option} has no effect on files (-r)"));
            }
        }
        Ok(())
    }

    fn capture(&self) -> Result<LiveOptions> {
        let mut options = LiveOptions::default();
        options.interfaces.clone_from(&self.interfaces);
        options.promiscuous = !self.no_promiscuous;
        options.immediate = self.immediate_mode;
        options.cut = self.early_cut;
        options.bridge_ports = self.bridge_ports()?;
        options.exclusive = match self.exclusive {
            Some(ExclusiveArg::Always) => Exclusive::Yes,
            Some(ExclusiveArg::Auto) => Exclusive::Auto,
            None => Exclusive::No,
        };
        options.rings = match self.rings {
            RingsArg::Auto => Rings::Auto,
            RingsArg::Each => Rings::Each,
            RingsArg::One => Rings::One,
        };
        options.stamps = match self.stamps {
            StampsArg::Auto => Stamps::Auto,
            StampsArg::Host => Stamps::Host,
            StampsArg::Adapter => Stamps::Adapter,
        };
        options.direction = match self.direction {
            Way::In => Direction::In,
            Way::Out => Direction::Out,
            Way::Inout => Direction::Both,
        };
        if self.snaplen > 0 {
            options.snaplen = self.snaplen;
        }
        if let Some(size) = &self.buffer_size {
            options.ring_bytes = Some(ring_bytes(size)?);
        }
        Ok(options)
    }

    /// Ports of each bridge.
    fn bridge_ports(&self) -> Result<Vec<Vec<String>>> {
        let mut all: Vec<Vec<String>> = Vec::new();
        for text in &self.bridge_ports {
            let names: Vec<String> = text.split(',').map(str::to_owned).collect();
            for name in &names {
                let problem = match all.iter().any(|other| other.contains(name)) {
                    true => "it is the port of one bridge only",
                    false if !self.interfaces.contains(name) => "it is not captured (-i)",
                    false => continue,
                };
                return Err(refuse(format!("--bridge-ports: '{name}': {problem}")));
            }
            all.push(names);
        }
        Ok(all)
    }

    fn sandbox(&self) -> SandboxSpec {
        let mut helper = vec![String::from("helper")];
        if let Some(user) = &self.user {
            helper.extend([String::from("--user"), user.clone()]);
        }
        SandboxSpec {
            user: self.user.clone(),
            helper,
        }
    }
}

/// Refuses options that are given, but only apply to interfaces.
pub(super) fn only_live(options: &[(&str, bool)]) -> Result<()> {
    match options.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(refuse(format!(
            "{option} applies to interfaces (-i) only, and the input is files (-r)"
        ))),
        None => Ok(()),
    }
}

/// CPUs from a list of numbers and ranges.
fn cores(text: &str) -> Result<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let parsed = text.trim().parse::<usize>().ok();
            let parsed = parsed.filter(|&core| core < CpuSet::MAX_CPU);
            parsed.with_context(|| format!("--cores: '{text}' is not a CPU: write 1,2 or 2-5"))
        };
        cores.extend(number(from)?..=number(to)?);
    }
    let mut sorted = cores.clone();
    sorted.sort_unstable();
    sorted.dedup();
    anyhow::ensure!(
        sorted.len() == cores.len() && !cores.is_empty(),
        "--cores: '{text}' names a CPU more than once"
    );
    Ok(cores)
}

/// As with tcpdump's -B, a bare number is in KiB.
fn ring_bytes(text: &str) -> Result<usize> {
    let bytes = match text.parse::<u64>() {
        Ok(kib) => kib.checked_mul(1024).context("-B is too large")?,
        Err(_) => text::bytes(text)?,
    };
    anyhow::ensure!(bytes < 1 << 32, "-B must be below 4GiB");
    Ok(usize::try_from(bytes)?)
}
