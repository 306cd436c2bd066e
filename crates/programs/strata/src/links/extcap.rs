//! `strata-extcap`: a collector in Wireshark's own list of interfaces, and in tshark's.
//!
//! This program is called by that name through a link in a folder of Wireshark's for extcaps, with the
//! arguments of extcap(4): what interfaces there are, what each can be set to, and to capture into a named
//! pipe. The interfaces of agents are those of a controller on this machine, and those that were heard of
//! while something was captured before.

use std::collections::BTreeMap;
use std::env::{args_os, var_os};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use strata_collector::{Collector, CollectorSpec, Outlet, ShowSpec};
use strata_control::SenderStatus;
use strata_control::client::ControllerClient;
use strata_role::{Notice, Tell};
use strata_sandbox::Owner;
use strata_terminal::address::{address, networks};
use strata_terminal::logging;
use strata_terminal::output::{refuse, standard};
use strata_terminal::signals::stop_on_signal;
use strata_terminal::text::filter;
use strata_wire::Printable;

use crate::collector::{PORT, listens_to};

/// The name that it is called by.
const NAME: &str = "strata-extcap";
/// The interface of all senders; those of individual ones have their identity after it.
const ALL: &str = "strata";
/// Interfaces that are remembered, and bytes of their file.
const KNOWN_MAX: usize = 1024;
const KNOWN_BYTES: u64 = 1 << 20;

/// The arguments of extcap(4) that are used, and what can be set.
#[derive(Debug, Parser)]
#[command(name = NAME, version, about = "Lists the exports of agents among Wireshark's interfaces")]
struct Args {
    /// List the interfaces.
    #[arg(long)]
    extcap_interfaces: bool,
    /// Wireshark's version.
    #[arg(long = "extcap-version", value_name = "VERSION")]
    _version: Option<String>,
    /// Use this interface.
    #[arg(long, value_name = "INTERFACE")]
    extcap_interface: Option<String>,
    /// List the link types of the interface.
    #[arg(long)]
    extcap_dlts: bool,
    /// List the settings of the interface.
    #[arg(long)]
    extcap_config: bool,
    /// Capture only packets that match this tcpdump filter; without --capture, only check the
    /// filter.
    #[arg(long, value_name = "FILTER")]
    extcap_capture_filter: Option<String>,
    /// Capture.
    #[arg(long)]
    capture: bool,
    /// Write to this named pipe.
    #[arg(long, value_name = "PIPE")]
    fifo: Option<PathBuf>,
    /// As `strata collector --listen`.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1:4740")]
    listen: String,
    /// As `strata collector --allow`, separated by commas.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    allow: Vec<String>,
    /// As `strata collector --key-file`.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

/// Whether the program is called by that name.
pub(crate) fn is_called() -> bool {
    let name = args_os().next();
    name.is_some_and(|name| {
        let stem = Path::new(&name).file_stem();
        stem.is_some_and(|stem| stem == NAME)
    })
}

/// The whole program, when it is called by that name.
pub(crate) fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if args.extcap_interfaces {
        interfaces()?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = args.extcap_interface.as_deref();
    let name = name
        .ok_or_else(|| refuse("no interface is named: --extcap-interfaces lists the interfaces"))?;
    let only = identity(name)?;
    let mut out = standard();
    if args.extcap_dlts {
        // Each interface in what is captured has its own.
        writeln!(
            out,
            "dlt {{number=1}}{{name=EN10MB}}{{display=Ethernet and others}}"
        )?;
    } else if args.extcap_config {
        config(&mut out)?;
    } else if args.capture {
        capture(&args, only)?;
    } else if let Some(text) = &args.extcap_capture_filter
        && let Err(error) = filter(std::slice::from_ref(text))
    {
        // Wireshark shows what it says.
        writeln!(out, "{error:#}")?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Text within the braces of an answer.
fn within(text: &str) -> String {
    let text = Printable(text).to_string();
    text.replace('{', "(").replace('}', ")")
}

/// Lists all senders as one interface, and each interface of theirs that is known.
fn interfaces() -> Result<()> {
    let mut out = standard();
    let version = env!("CARGO_PKG_VERSION");
    let what = "{display=Strata: exports of agents}";
    writeln!(out, "extcap {{version={version}}}{what}")?;
    let all = "{display=Strata: all agents and recordings}";
    writeln!(out, "interface {{value={ALL}}}{all}")?;
    let mut known = remembered();
    known.extend(of_controller());
    for (identity, name) in known {
        let name = within(&name);
        let shown = format!("{{display=Strata: {name} (identity {identity})}}");
        writeln!(out, "interface {{value={ALL}-{identity}}}{shown}")?;
    }
    Ok(())
}

/// Interfaces by their identities.
type Known = BTreeMap<u32, String>;

/// Those of a controller on this machine, if there is one that this user may ask.
fn of_controller() -> Known {
    let usual = || PathBuf::from("/var/lib/strata/controller");
    let state = var_os("STRATA_CONTROLLER").map_or_else(usual, PathBuf::from);
    let agents = ControllerClient::new(&state).agents();
    let mut known = Known::new();
    for agent in agents.into_iter().flatten() {
        let named = |interface| format!("{}:{interface}", agent.name);
        let interfaces = agent.identities.iter();
        known.extend(interfaces.map(|(interface, identity)| (*identity, named(interface))));
    }
    known
}

/// Where this user's known interfaces are.
fn memory() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(var_os("HOME")?).join(".cache"));
    let cache = var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
    Some(cache.join("strata/extcap"))
}

/// Those that were heard of before.
fn remembered() -> Known {
    let file = memory().filter(|file| fs::metadata(file).is_ok_and(|it| it.len() <= KNOWN_BYTES));
    let text = file.and_then(|file| fs::read_to_string(file).ok());
    let lines = text.iter().flat_map(|text| text.lines());
    let lines = lines.filter_map(|line| line.split_once(' '));
    let known =
        lines.filter_map(|(identity, name)| Some((identity.parse().ok()?, name.to_owned())));
    known.take(KNOWN_MAX).collect()
}

/// Opens the file of interfaces that are known: later, the sandbox does not permit that.
fn open_memory() -> Option<File> {
    let path = memory()?;
    fs::create_dir_all(path.parent()?).ok()?;
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .ok()
}

/// Remembers whom something came from: those of now before those of `earlier`.
fn remember(from: Vec<SenderStatus>, earlier: Known, mut file: File) -> io::Result<()> {
    let named = from.into_iter().filter(|from| !from.name.is_empty());
    let mut known: Known = named
        .take(KNOWN_MAX)
        .map(|from| (from.identity, Printable(&from.name).to_string()))
        .collect();
    for (identity, name) in earlier {
        if known.len() < KNOWN_MAX {
            known.entry(identity).or_insert(name);
        }
    }
    let lines = known
        .iter()
        .map(|(identity, name)| format!("{identity} {name}\n"));
    file.set_len(0)?;
    file.write_all(lines.collect::<String>().as_bytes())
}

/// Whose packets an interface stands for; `None` for everybody's.
fn identity(name: &str) -> Result<Option<u32>> {
    if name == ALL {
        return Ok(None);
    }
    let rest = name.strip_prefix(ALL);
    let number = rest.and_then(|rest| rest.strip_prefix('-'));
    match number.and_then(|number| number.parse().ok()) {
        Some(number) => Ok(Some(number)),
        None => Err(refuse(format!(
            "there is no interface {name}: --extcap-interfaces lists the interfaces"
        ))),
    }
}

fn config(out: &mut impl Write) -> Result<()> {
    let text = "{type=string}";
    let listen = "{display=Listen on}{tooltip=Address and UDP port to which agents export}";
    writeln!(
        out,
        "arg {{number=0}}{{call=--listen}}{listen}{text}{{default=127.0.0.1:{PORT}}}"
    )?;
    let allow = "{display=Senders}{tooltip=Networks of senders, separated by commas; needed without a \
                 key, unless this is a loopback address}";
    writeln!(out, "arg {{number=1}}{{call=--allow}}{allow}{text}")?;
    let key = "{display=Key file}{tooltip=Accept only datagrams that are encrypted with a key in this file}";
    writeln!(
        out,
        "arg {{number=2}}{{call=--key-file}}{key}{{type=fileselect}}{{mustexist=true}}"
    )?;
    Ok(())
}

/// Collects into Wireshark's pipe, until it is closed or a signal comes.
fn capture(args: &Args, only: Option<u32>) -> Result<()> {
    let fifo = args.fifo.as_ref();
    let fifo = fifo.ok_or_else(|| refuse("--capture needs --fifo"))?;
    let listen = address("--listen", &args.listen, PORT)?;
    // Wireshark gives what is not set as an empty text.
    let is_set = |text: &&String| !text.trim().is_empty();
    let allow: Vec<String> = args.allow.iter().filter(is_set).cloned().collect();
    let key_file = args.key_file.clone();
    let key_file = key_file.filter(|file| !file.as_os_str().is_empty());
    let wanted = args.extcap_capture_filter.iter().filter(is_set);
    let wanted: Vec<String> = wanted.cloned().collect();
    let spec = CollectorSpec {
        listen,
        allowed: listens_to(listen, networks("--allow", &allow)?, key_file.as_ref())?,
        packets_max: None,
        comments: true,
        report_to: None,
        key_file,
        only,
        filter: filter(&wanted)?,
        splits: false,
        show: ShowSpec::default(),
        sandboxed: true,
    };
    let stop = stop_on_signal()?;
    // Wireshark and tshark show whatever comes on standard error as an error.
    let tell = |notice: &Notice| match notice.kind {
        "serving" => {}
        _ => logging::notice(notice),
    };
    let quiet: Tell = Arc::new(|_: &Notice| {});
    let collector = Collector::open(spec, Arc::new(tell))?;
    let pipe = Outlet::create(fifo, &Owner::default(), &stop, &quiet)?;
    let (earlier, file) = (remembered(), open_memory());
    let outcome = collector.run(pipe, &stop, || false)?;
    // A list that cannot be kept is no reason for a capture to fail.
    drop(file.map(|file| remember(outcome.from, earlier, file)));
    match outcome.failure {
        Some(failure) => Err(failure.into()),
        None => Ok(()),
    }
}
