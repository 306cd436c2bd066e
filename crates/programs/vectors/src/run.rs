//! `strata gpv run`: packets into vectors, and vectors to files and over UDP.

use std::fs::File;
use std::io::{IsTerminal as _, Write as _, stdout};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use strata_capture::PacketRef;
use strata_filter::Filter;
use strata_gpv::{CacheCounters, Column, Columns};
use strata_gpv_run::{
    Counted, LiveVectors, OutletsSpec, RingSpec, Target, TargetList, VectorFile, VectorRun,
    VectorRunOutcome, VectorRunSpec, with_time,
};
use strata_role::FeedSpec;
use strata_role::sandbox::{Reach, unconfined};
use strata_store::Sources;
use strata_stream_run::WhenFull;
use strata_terminal::bounded;
use strata_terminal::confined::SandboxArgs;
use strata_terminal::feed::{fed_when, place};
use strata_terminal::logging;
use strata_terminal::output::{refuse, standard};
use strata_terminal::packets::{Take, captured, live};
use strata_terminal::signals::stop_on_signal;
use strata_terminal::text::{self, count_of, percent};
use strata_wire::{LinkType, grouped};
use tracing::warn;

use super::rotate::RotateArgs;
use super::target::{listed, target};
use super::{CAPTURED_NAMES, CacheArgs, FormName, counted, failed, matches, usual_datagram};

/// Arguments of `strata gpv run`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "\
strata gpv run -r FILE [-w FILE] [--send-to HOST:PORT] [--ring FILE] [--to-stream DIR/NAME] [FILTER]
       strata gpv run -i IF [-w FILE] [--send-to HOST:PORT] [--ring FILE] [--to-stream DIR/NAME] [FILTER]",
    after_help = "\
Prints the number of packets, the number and mean length of vectors, and the reasons why vectors
left the cache. Without -w, --send-to, --ring and --to-stream, it only prints these figures.

Examples:
  strata gpv run -r trace.pcap
  strata gpv run -r trace.pcap -w vectors.gpv --slots 4096 --wide-blocks 1024
  strata gpv run -i eth0 --send-to collector:4739 'tcp port 443'
  strata gpv run -i eth0 --send-to 10.0.0.1:4739,proto=udp --send-to 10.0.0.2:4739,src=10.0.0.0/8
  strata gpv run -i eth0 --targets targets.txt
  strata gpv run -i eth0 -w 'vectors-%Y%m%d-%H%M%S.gpv' -G 3600 -W 24
  strata gpv run -i eth0 --ring /dev/shm/vectors
  strata gpv run -i eth0 --to-stream streams/vectors
  strata stream tail streams/ vectors --follow --raw | strata gpv agent -r - -w records.parquet

`strata gpv agent` reads these vectors."
)]
pub(super) struct Args {
    /// Group the packets of this capture file; - is standard input. Several files are merged in
    /// time order.
    #[arg(short = 'r', long = "read", value_name = "FILE", group = "source")]
    read: Vec<PathBuf>,

    /// Group the packets on this interface, until Ctrl-C. Separate several by commas; any means all
    /// interfaces.
    #[arg(
        short = 'i',
        long = "interface",
        value_name = "NAME",
        value_delimiter = ',',
        group = "source"
    )]
    interfaces: Vec<String>,

    /// Group only packets that match this tcpdump filter.
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,

    /// Write the vectors to this file, replacing it; - is standard output.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: Option<PathBuf>,

    /// Send the vectors to this address by UDP; may be given up to 32 times. Rules after commas
    /// choose flows: src= and dst= with a network; sport= and dport= with a port, or a range such
    /// as 8000-8999; proto= with tcp, udp, icmp, icmp6 or a number. A flow must match all of them.
    #[arg(long = "send-to", value_name = "HOST:PORT[,RULE...]", value_parser = target)]
    to: Vec<Target>,

    /// Send the vectors to the addresses in this file, too: a line for each, in the form of --send-to.
    /// `strata gpv target` adds and removes addresses while this command runs (-i). Their vectors are
    /// numbered on after each change. Only for the form strata.
    #[arg(long, value_name = "FILE")]
    targets: Option<PathBuf>,

    /// Write the vectors to a ring buffer in this file, for agents on this machine. This command
    /// does not wait for agents: an agent that falls behind by the size of the ring loses vectors,
    /// and counts them. Use a file in memory, such as /dev/shm/NAME.
    #[arg(long, value_name = "FILE")]
    ring: Option<PathBuf>,

    /// Set the size of the ring.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", requires = "ring")]
    ring_size: String,

    /// Append the datagrams of vectors to this stream, which `strata stream create` has made. With
    /// -i, vectors never wait for the disk: vectors that the stream cannot accept in time are
    /// missing from it, and counted.
    #[arg(long, value_name = "DIR/NAME")]
    to_stream: Option<String>,

    /// Set the form of the vectors.
    #[arg(short = 'F', long, value_enum, default_value_t = FormName::Strata)]
    format: FormName,

    /// Write these packet features, in addition to times. Only for the form strata.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        value_parser = super::column,
        default_value = CAPTURED_NAMES
    )]
    columns: Vec<Column>,

    /// Send datagrams of at most this many bytes.
    #[arg(long, value_name = "BYTES", default_value_t = usual_datagram())]
    datagram_max: usize,

    /// Limit the time that a packet of an interface waits in the cache. With 0s, packets wait until
    /// their slot is full, another flow needs it, or an agent requests it (strata gpv agent
    /// --flush-idle).
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = text::duration_ns)]
    flush_after: u64,

    /// Stop after this many packets.
    #[arg(short = 'c', long = "count", value_name = "PACKETS", value_parser = text::number)]
    count: Option<u64>,

    /// Print the counts as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    sandbox: SandboxArgs,

    // Last, since their headings in the help apply to all options after them.
    #[command(flatten)]
    rotate: RotateArgs,

    #[command(flatten)]
    cache: CacheArgs,
}

impl Args {
    /// Whether packets come until somebody stops them.
    pub(super) fn is_live(&self) -> bool {
        !self.interfaces.is_empty()
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    if args.read.is_empty() && args.interfaces.is_empty() {
        return Err(refuse(
            "nothing to group: name a capture file with -r or an interface with -i",
        ));
    }
    let filter = text::filter(&args.filter)?;
    let stop = stop_on_signal()?;
    let run = VectorRun::open(spec(args)?, Arc::new(logging::notice)).map_err(failed)?;
    let mut grouping = Grouping(run);
    let read = match args.is_live() {
        false => {
            // It ends with its files.
            unconfined();
            captured(&args.read, filter, &stop, &mut grouping)
        }
        true => live(
            (&args.interfaces, &args.sandbox),
            filter,
            &stop,
            &mut grouping,
        )
        .map(|lost| {
            for (name, packets) in lost {
                warn!(
                    "{name}: {} lost: they arrived faster than they were processed",
                    count_of(packets, "packet")
                );
                grouping.0.lost(packets);
            }
        }),
    };
    let Grouping(run) = grouping;
    // What was read of a damaged capture is written.
    let ended = match run.has_begun() {
        true => run.finish().map_err(failed).and_then(|it| show(args, &it)),
        false => Ok(()),
    };
    read.and(ended)
}

/// The run that the command line describes.
fn spec(args: &Args) -> Result<VectorRunSpec> {
    let parameters = args.cache.parameters()?;
    let ring = args.ring.clone().map(|path| {
        let bytes = bounded::bytes(&args.ring_size, "--ring-size")?;
        anyhow::Ok(RingSpec { path, bytes })
    });
    Ok(VectorRunSpec {
        form: args.format.into(),
        parameters,
        columns: with_time(Columns::of(&args.columns)),
        datagram_max: args.datagram_max,
        outlets: OutletsSpec {
            to: args.to.clone(),
            listed: args
                .targets
                .as_deref()
                .map(|file| TargetList::new(file, listed)),
            ring: ring.transpose()?,
            file: file(args)?,
            stream: stream(args)?,
            sources: Sources::default().files(&args.read),
        },
        packets_max: args.count,
        live: args.is_live().then(|| LiveVectors {
            interfaces: args.interfaces.join(", "),
            flush_after: (args.flush_after > 0).then(|| Duration::from_nanos(args.flush_after)),
        }),
    })
}

fn file(args: &Args) -> Result<Option<VectorFile>> {
    let rotation = args.rotate.of(args.write.as_deref())?;
    let Some(path) = &args.write else {
        return Ok(None);
    };
    if path.as_os_str() != "-" {
        return Ok(Some(VectorFile::Named(path.clone(), rotation)));
    }
    if stdout().is_terminal() {
        return Err(refuse(
            "standard output is a terminal, and vectors are not text: write them to a file, or \
             pipe them into another program",
        ));
    }
    let name = String::from("standard output");
    let file = stdout().as_fd().try_clone_to_owned();
    let file = file.with_context(|| format!("{name}: cannot write"))?;
    Ok(Some(VectorFile::Open(name, File::from(file))))
}

/// The stream that datagrams are appended to. Those of captures wait for it.
fn stream(args: &Args) -> Result<Option<(String, Box<dyn FeedSpec>)>> {
    let Some(text) = &args.to_stream else {
        return Ok(None);
    };
    let when_full = match args.is_live() {
        true => WhenFull::Lose,
        false => WhenFull::Wait,
    };
    let place = place(text)?;
    let name = format!("{}/{}", place.0.display(), place.1);
    Ok(Some((name, fed_when(&place, when_full)?)))
}

/// Packets of captures or interfaces are given to a run.
struct Grouping(VectorRun);

impl Take for Grouping {
    fn prepare(&mut self) -> Result<Reach> {
        Ok(self.0.reach())
    }

    fn begin(&mut self, filter: Option<Filter>) -> Result<()> {
        self.0.begin(filter.map(matches)).map_err(failed)
    }

    fn packet(&mut self, link: LinkType, packet: &PacketRef<'_>) -> Result<()> {
        self.0.packet(link, packet).map_err(failed)
    }

    fn pause(&mut self) -> Result<()> {
        self.0.pause().map_err(failed)
    }

    fn is_done(&self) -> bool {
        self.0.is_done()
    }
}

/// Says what was done: on standard error if vectors go to standard output.
fn show(args: &Args, outcome: &VectorRunOutcome) -> Result<()> {
    let said = match args.json {
        true => format!("{:#}\n", as_json(outcome)),
        false => as_text(outcome),
    };
    match args
        .write
        .as_ref()
        .is_some_and(|path| path.as_os_str() == "-")
    {
        true => std::io::stderr().write_all(said.as_bytes())?,
        false => standard().write_all(said.as_bytes())?,
    }
    counted::say(&outcome.counted);
    for to in outcome.to.iter().filter(|to| to.unsent > 0) {
        let why = to.error.as_ref().map(|error| format!(": {error}"));
        warn!(
            "{}: {} not sent{}",
            to.name,
            count_of(to.unsent, "datagram"),
            why.as_deref().unwrap_or("")
        );
    }
    Ok(())
}

fn as_text(outcome: &VectorRunOutcome) -> String {
    let CacheCounters {
        packets,
        vectors: [full, collision, time, flushed],
        tuples,
        widened,
        denied,
    } = outcome.cache;
    let vectors = outcome.cache.vectors_total();
    let mut said = format!(
        "{} in {} ({} of the number of packets), {} packets each\n\
         left the cache: {} full, {} for another flow, {} because a time did not fit, {} flushed\n",
        count_of(packets, "packet"),
        count_of(vectors, "vector"),
        percent(vectors, packets),
        each(tuples, vectors),
        grouped(full),
        grouped(collision),
        grouped(time),
        grouped(flushed),
    );
    if widened + denied > 0 {
        said += &format!(
            "wide buffers: {} taken; all of them in use {} times\n",
            grouped(widened),
            grouped(denied)
        );
    }
    if outcome.slots_asked > 0 {
        let slots = count_of(outcome.slots_asked, "slot");
        said += &format!("{slots} requested by agents\n");
    }
    for to in &outcome.to {
        said += &format!(
            "{}: {} in {}, {} bytes",
            to.name,
            count_of(to.vectors, "vector"),
            count_of(to.datagrams, "datagram"),
            grouped(to.bytes)
        );
        if to.not_chosen > 0 {
            said += &format!("; {} not chosen by the rules", grouped(to.not_chosen));
        }
        if to.not_carried > 0 {
            said += &format!("; {} that the form cannot hold", grouped(to.not_carried));
        }
        said.push('\n');
    }
    said
}

fn as_json(outcome: &VectorRunOutcome) -> serde_json::Value {
    let counters = &outcome.cache;
    let [full, collision, time, flushed] = counters.vectors;
    let Counted {
        packets: _,
        filtered,
        not_ip,
        cut,
        dropped,
    } = outcome.counted;
    let to = outcome.to.iter().map(|to| {
        json!({
            "to": to.name,
            "vectors": to.vectors,
            "datagrams": to.datagrams,
            "bytes": to.bytes,
            "not_chosen": to.not_chosen,
            "not_carried": to.not_carried,
            "datagrams_not_sent": to.unsent,
        })
    });
    json!({
        "packets": counters.packets,
        "vectors": counters.vectors_total(),
        "packets_in_vectors": counters.tuples,
        "left": {"full": full, "collision": collision, "time": time, "flushed": flushed},
        "wide_buffers": {"taken": counters.widened, "none_free": counters.denied},
        "slots_asked_for": outcome.slots_asked,
        "not_matched": filtered,
        "not_ip": not_ip,
        "cut": cut,
        "lost": dropped,
        "destinations": to.collect::<Vec<_>>(),
    })
}

/// Packets of a vector on average.
#[allow(clippy::cast_precision_loss, reason = "an average to read")]
fn each(tuples: u64, vectors: u64) -> String {
    match vectors {
        0 => String::from("0"),
        _ => format!("{:.1}", tuples as f64 / vectors as f64),
    }
}
