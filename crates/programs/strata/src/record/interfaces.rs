//! Arguments of `strata record` for interfaces.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::thread::CpuSet;
use strata_capture::live::{Direction, Exclusive, LiveOptions, Rings, Stamps, interface_names};
use strata_record::{InterfaceSpec, SandboxSpec, Shed};
use strata_terminal::bounded;
use strata_terminal::confined::NetnsArgs;
use strata_terminal::output::refuse;
use strata_terminal::rings::{RingsArg, percent};
use strata_terminal::text::warn;

/// Maximum bytes captured of a packet, as in tcpdump and libpcap.
const SNAPLEN_MAX: i64 = 262_144;

/// Arguments of `strata record` for interfaces.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Interfaces")]
pub(super) struct InterfaceArgs {
    /// Capture this interface (name, altname or number) until Ctrl-C, or several, separated by
    /// commas; `any` means all. `strata interfaces` lists them.
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

    /// Do not put the interface into promiscuous mode.
    #[arg(short = 'p', long = "no-promiscuous-mode")]
    no_promiscuous: bool,

    /// Capture at most this many bytes of each packet; 0 means the default.
    #[arg(short = 's', long = "snapshot-length", value_name = "BYTES", default_value_t = LiveOptions::SNAPLEN_DEFAULT,
        value_parser = clap::value_parser!(u32).range(..=SNAPLEN_MAX))]
    snaplen: u32,

    /// Set the ring size of each interface in KiB, or with a unit (256MiB). By default, a ring
    /// holds 0.2 s at the link's rate, but has at least 32 MiB and at most the smaller of 512 MiB
    /// and a sixteenth of this machine's memory; 64 MiB if the rate is unknown.
    #[arg(short = 'B', long = "buffer-size", value_name = "KIB")]
    buffer_size: Option<String>,

    /// Use a ring for each interface (each), or one ring for all interfaces (one). The ring for all
    /// is as large as the separate rings together, but at most 64 MiB, or the size of the largest
    /// separate ring if that is more. By default (auto), 128 or more interfaces share one ring.
    /// Interfaces without Ethernet headers, the loopback interface and interfaces with NIC
    /// timestamps always have rings of their own.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = RingsArg::Auto)]
    rings: RingsArg,

    /// Deliver packets within 1 ms instead of 10 ms.
    #[arg(long)]
    immediate_mode: bool,

    /// Capture only packets of this direction: in, out or inout (both).
    #[arg(short = 'Q', long, value_enum, default_value_t = Way::Inout)]
    direction: Way,

    /// Take timestamps from this clock: adapter (the NIC's clock), host (the kernel's), or auto
    /// (the NIC's if it stamps every packet and agrees with this host's clock, else the kernel's).
    #[arg(short = 'j', long = "time-stamp-type", value_enum, value_name = "TYPE", default_value_t = StampsArg::Auto)]
    stamps: StampsArg,

    /// Run one worker on each of these CPUs, as in 1,2 or 2-5, and spread flows among them.
    ///
    /// By default, one worker runs on any CPU.
    #[arg(long, value_name = "CPUS")]
    cores: Option<String>,

    /// Capture with AF_XDP. This is faster, but takes packets away from this host: no other program
    /// receives the packets that pass the filter, and even your own remote session stops. Use it
    /// for mirror ports and taps. It captures received packets only. With =auto, it applies only to
    /// interfaces whose driver supports XDP and that nothing else on this host uses when the
    /// recording starts: no address, no route, no bridge or bond, no VLAN or macvlan on top, no XDP
    /// or tc program, and no packet socket. A program that begins to use such an interface later
    /// receives nothing. Other interfaces are captured as usual.
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "always"
    )]
    exclusive: Option<ExclusiveArg>,

    /// Name the ports of a bridge, separated by commas: a packet that the bridge forwards from one
    /// port to another is captured only at the port where it enters. May be given once for each
    /// bridge.
    #[arg(long, value_name = "NAMES")]
    bridge_ports: Vec<String>,

    /// Record which process of this host sends and receives each packet of TCP and UDP: its name, its
    /// PID and its cgroup, whose path identifies the container. They are in a comment of the packet
    /// and in columns of flows (src_process, dst_process and others). eBPF programs note the process
    /// of each socket during the recording; each packet of this host then costs about 1 us more.
    #[arg(long, conflicts_with = "exclusive")]
    processes: bool,

    /// Change to this user after opening the interfaces, as tcpdump does. This user then owns the
    /// log.
    #[arg(
        short = 'Z',
        long = "relinquish-privileges",
        value_name = "USER",
        conflicts_with = "no_sandbox"
    )]
    user: Option<String>,

    /// Keep all privileges and access to all files, instead of dropping unneeded ones once the
    /// interfaces are open.
    #[arg(long)]
    no_sandbox: bool,

    /// Limit the CPU use of this process, as in 10%; 100% is one core. To stay within the limit,
    /// the recording captures only a share of the flows, as large as possible. Packets of the other
    /// flows are counted (dropped{cpu_budget}), and the log records the share.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    cpu: Option<f64>,

    /// Use less CPU time than --cpu permits while other work, such as forwarding, is short of time
    /// on the CPUs of this process: first copy at most 256 bytes of each packet, then lower the
    /// limit in steps, down to a sixteenth. When CPU time is free again, the limit is restored.
    #[arg(long, requires = "cpu")]
    give_way: bool,

    /// Choose the data to give up first when there is too little CPU time: payload (copy at most
    /// 256 bytes of each packet until CPU time is free again), packets (lose some packets, and copy
    /// the others whole), or auto (payload, except in mode log-all). Without eBPF, packets are
    /// always copied whole.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = ShedArg::Auto)]
    shed: ShedArg,

    /// Let the kernel copy only the headers of packets whose flow will very probably be kept as
    /// headers only. This saves the time to copy long packets; on a busy core, and with packets
    /// shorter than 1,000 bytes, the look-ups of flows can take more time than they save. Packets
    /// that were cut but should have been kept whole are counted (wanted_but_cut).
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
            processes: self.processes,
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
            ("--processes", self.processes),
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
        options.interfaces = interface_names(&self.interfaces);
        options.promiscuous = !self.no_promiscuous;
        options.immediate = self.immediate_mode;
        options.cut = self.early_cut;
        options.bridge_ports = self.bridge_ports(&options.interfaces)?;
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

    /// Ports of each bridge, which are among the interfaces.
    fn bridge_ports(&self, interfaces: &[String]) -> Result<Vec<Vec<String>>> {
        let mut all: Vec<Vec<String>> = Vec::new();
        for text in &self.bridge_ports {
            let names: Vec<String> = text.split(',').map(str::to_owned).collect();
            let names = interface_names(&names);
            for name in &names {
                let problem = match all.iter().any(|other| other.contains(name)) {
                    true => "a port belongs to one bridge only",
                    false if !interfaces.contains(name) => "it is not captured (-i)",
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
        let range = number(from)?..=number(to)?;
        anyhow::ensure!(
            !range.is_empty(),
            "--cores: '{part}': write ranges from low to high, as in 2-5"
        );
        cores.extend(range);
    }
    let mut sorted = cores.clone();
    sorted.sort_unstable();
    sorted.dedup();
    anyhow::ensure!(
        sorted.len() == cores.len(),
        "--cores: '{text}' names a CPU more than once"
    );
    Ok(cores)
}

/// As with tcpdump's -B, a bare number is in KiB.
fn ring_bytes(text: &str) -> Result<usize> {
    let bytes = match text.parse::<u64>() {
        Ok(kib) => kib
            .checked_mul(1024)
            .ok_or_else(|| refuse(ring_refused(text)))?,
        Err(_) => bounded::bytes(text, "-B")?,
    };
    anyhow::ensure!(bytes < 1 << 32, ring_refused(text));
    Ok(usize::try_from(bytes)?)
}

fn ring_refused(text: &str) -> String {
    format!("-B: '{text}': write a size below 4GiB (a bare number is in KiB)")
}
