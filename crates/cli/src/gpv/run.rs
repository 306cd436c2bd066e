//! `strata gpv run`: packets into vectors, and vectors to files and over UDP.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use strata_capture::PacketRef;
use strata_filter::Filter;
use strata_gpv::format::datagram::{LEN_MAX, LEN_MIN};
use strata_gpv::format::paper;
use strata_gpv::{CacheCounters, Column, Packet};
use strata_role::sandbox::Reach;
use strata_stream_run::WhenFull;
use strata_wire::{LinkType, grouped};
use tracing::{info, warn};

use super::form::{Form, Grouping};
use super::outlets::{Outlet, Outlets, RingSpec};
use super::packets::{Counted, Features};
use super::rotate::RotateArgs;
use super::target::Target;
use super::{CAPTURED_NAMES, CacheArgs, usual_datagram};
use crate::confined::SandboxArgs;
use crate::output::{refuse, standard};
use crate::packets::{Take, captured, live};
use crate::signals::stop_on_signal;
use crate::text::{self, count_of, percent};

/// Packets that go through the cache together.
const BATCH: usize = 256;
/// How often control packets are read.
const CONTROL_EVERY: Duration = Duration::from_millis(20);
/// How often peers hear of the cache, also if it has nothing for them.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);

/// Arguments of `strata gpv run`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "\
strata gpv run -r FILE [-w FILE] [--to HOST:PORT] [--ring FILE] [--to-stream DIR/NAME] [FILTER]
       strata gpv run -i IF [-w FILE] [--to HOST:PORT] [--ring FILE] [--to-stream DIR/NAME] [FILTER]",
    after_help = "\
Prints how many vectors there were for so many packets, how long they were and why they left the
cache. Without -w, --to, --ring and --to-stream, that is all it does.

Examples:
  strata gpv run -r trace.pcap
  strata gpv run -r trace.pcap -w vectors.gpv --slots 4096 --blocks 1024
  strata gpv run -i eth0 --to collector:4739 'tcp port 443'
  strata gpv run -i eth0 --to 10.0.0.1:4739,proto=udp --to 10.0.0.2:4739,src=10.0.0.0/8
  strata gpv run -i eth0 -w 'vectors-%Y%m%d-%H%M%S.gpv' -G 3600 -W 24
  strata gpv run -i eth0 --ring /dev/shm/vectors
  strata gpv run -i eth0 --to-stream streams/vectors
  strata stream tail streams/ vectors --follow --raw | strata gpv agent -r - -w records.parquet

`strata gpv agent` reads what this writes."
)]
pub(super) struct Args {
    /// Group the packets of this capture file; - is standard input. Several are merged in time
    /// order.
    #[arg(short = 'r', long = "read", value_name = "FILE", group = "source")]
    read: Vec<PathBuf>,

    /// Group the packets on this interface, until Ctrl-C; several are separated by commas; any
    /// means all of them.
    #[arg(
        short = 'i',
        long = "interface",
        value_name = "NAME",
        value_delimiter = ',',
        group = "source"
    )]
    interfaces: Vec<String>,

    /// Only packets that match this tcpdump filter.
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,

    /// Write the vectors to this file, replacing it; - is standard output.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: Option<PathBuf>,

    /// Send the vectors here by UDP; may be given several times, up to 32. Rules after commas
    /// choose flows: src= and dst= a network, sport= and dport= a port or a range such as
    /// 8000-8999, proto= tcp, udp, icmp, icmp6 or a number. All of them must match.
    #[arg(long, value_name = "HOST:PORT[,RULE...]", value_parser = Target::parse)]
    to: Vec<Target>,

    /// Write the vectors to a ring buffer in this file, for agents on this machine. It never waits
    /// for them: an agent that falls behind by the size of the ring loses vectors, and counts them.
    /// Best in memory: /dev/shm/NAME.
    #[arg(long, value_name = "FILE")]
    ring: Option<PathBuf>,

    /// Set the size of the ring.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", requires = "ring")]
    ring_size: String,

    /// Append the datagrams of vectors to this stream, which `strata stream create` has made. Of
    /// interfaces, it never waits for the disk: what the stream cannot take is lost, and counted.
    #[arg(long, value_name = "DIR/NAME")]
    to_stream: Option<String>,

    /// Set the form of vectors.
    #[arg(short = 'F', long, value_enum, default_value_t = Form::Strata)]
    format: Form,

    /// Write these features of packets, in addition to times. For the form strata.
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

    /// Of interfaces: let no packet wait in the cache for longer than this. 0s lets packets wait
    /// until another flow needs their place, or an agent asks for them (strata gpv agent
    /// --flush-idle).
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = text::duration_ns)]
    flush_after: u64,

    /// Stop after this many packets.
    #[arg(short = 'c', long = "count", value_name = "N", value_parser = text::number)]
    count: Option<u64>,

    /// Print the counts as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    rotate: RotateArgs,

    #[command(flatten)]
    cache: CacheArgs,

    #[command(flatten)]
    sandbox: SandboxArgs,
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
    let mut running = Running::new(args, Features::new()?)?;
    let read = match args.interfaces.is_empty() {
        true => captured(&args.read, filter, &stop, &mut running),
        false => live(
            (&args.interfaces, &args.sandbox),
            filter,
            &stop,
            &mut running,
        )
        .map(|lost| {
            for (name, packets) in lost {
                warn!("{name}: {} lost", count_of(packets, "packet"));
                running.features.counted.dropped += packets;
            }
        }),
    };
    // What was read of a damaged capture is written.
    let ended = match running.has_begun {
        true => running.end(args),
        false => Ok(()),
    };
    read.and(ended)
}

/// Packets into the cache, and its vectors to where they go.
struct Running {
    features: Features,
    grouping: Grouping,
    outlets: Outlets,
    batch: Vec<Packet>,
    left: Option<u64>,
    slots: Option<SlotsInTurn>,
    /// Slots that agents asked to be flushed, and when they were last listened to.
    asked: u64,
    control_at: Instant,
    announced_at: Instant,
    cache_slots: u32,
    /// Of interfaces: their names.
    interfaces: String,
    /// The source could be opened.
    has_begun: bool,
}

impl Running {
    fn new(args: &Args, features: Features) -> Result<Self> {
        let parameters = args.cache.parameters()?;
        let columns = super::with_time(&args.columns);
        let room = args.datagram_max;
        let longest = match args.format {
            Form::Strata => 24 + 24 + 32 + args.cache.length() * columns.tuple_len(),
            Form::Paper => paper::HEADER_LEN + args.cache.length() * 4,
            Form::PaperSeq => paper::HEADER_LEN + args.cache.length() * 8,
        };
        if !(LEN_MIN..=LEN_MAX).contains(&room) || longest > room {
            return Err(refuse(format!(
                "--datagram-max {room}: from {} to {LEN_MAX} are possible with vectors of {} \
                 packets; shorter vectors (--narrow, --wide) or fewer --columns need less",
                longest.max(LEN_MIN),
                args.cache.length(),
            )));
        }
        ensure!(
            args.to.len() <= 32,
            "--to is given {} times; 32 are possible",
            args.to.len()
        );
        let ring = args.ring.clone().map(|path| {
            let bytes = text::bytes(&args.ring_size)?;
            anyhow::Ok(RingSpec {
                path,
                bytes,
                datagram_max: room,
            })
        });
        let ring = ring.transpose()?;
        let rotation = args.rotate.of(args.write.as_deref())?;
        let write = args.write.as_deref().map(|path| (path, rotation));
        let when_full = match args.is_live() {
            true => WhenFull::Lose,
            false => WhenFull::Wait,
        };
        let to_stream = args.to_stream.as_deref().map(crate::stream::place);
        let to_stream = to_stream.transpose()?.map(|place| (place, when_full));
        let outlets = Outlets::open(&args.read, &args.to, write, ring, to_stream)?;
        let to = outlets.to();
        Ok(Self {
            features,
            grouping: Grouping::new(args.format, parameters, columns, room, to)?,
            outlets,
            batch: Vec::with_capacity(BATCH),
            left: args.count,
            slots: (!args.interfaces.is_empty() && args.flush_after > 0).then(|| SlotsInTurn {
                slots: parameters.slots,
                every: Duration::from_nanos(args.flush_after),
                began: Instant::now(),
                flushed: 0,
            }),
            asked: 0,
            control_at: Instant::now(),
            announced_at: Instant::now(),
            cache_slots: parameters.slots,
            interfaces: args.interfaces.join(", "),
            has_begun: false,
        })
    }

    /// Lets agents hear of the cache, which they may only ask for as much as comes from here.
    fn announce_again(&mut self) {
        if self.announced_at.elapsed() < ANNOUNCE_EVERY {
            return;
        }
        self.announced_at = Instant::now();
        let outlets = &mut self.outlets;
        // What is begun goes everywhere; what says how many there were, to peers alone.
        self.grouping
            .send_begun(|id, bytes| outlets.send(id, bytes));
        self.grouping
            .announce(|id, bytes| outlets.announce(id, bytes));
    }

    fn push(&mut self) -> Result<()> {
        let outlets = &mut self.outlets;
        self.grouping
            .push(&self.batch, |id, bytes| outlets.send(id, bytes));
        self.batch.clear();
        self.outlets.check()
    }

    fn end(mut self, args: &Args) -> Result<()> {
        self.push()?;
        let outlets = &mut self.outlets;
        self.grouping.end(|id, bytes| outlets.send(id, bytes));
        self.outlets.check()?;
        self.outlets.finish()?;
        self.report(args)
    }

    /// Says what was done: on standard error if vectors go to standard output.
    fn report(&self, args: &Args) -> Result<()> {
        let said = match args.json {
            true => format!("{:#}\n", self.as_json()),
            false => self.as_text(),
        };
        match self.outlets.is_stdout() {
            true => std::io::stderr().write_all(said.as_bytes())?,
            false => standard().write_all(said.as_bytes())?,
        }
        self.features.counted.say();
        for to in self.outlets.targets() {
            if to.unsent > 0 {
                let why = to.error.as_ref().map(|error| format!(": {error}"));
                warn!(
                    "{}: {} not sent{}",
                    to.name,
                    count_of(to.unsent, "datagram"),
                    why.as_deref().unwrap_or("")
                );
            }
        }
        Ok(())
    }

    fn as_text(&self) -> String {
        let CacheCounters {
            packets,
            vectors: [full, collision, time, flushed],
            tuples,
            widened,
            denied,
        } = *self.grouping.counters();
        let vectors = self.grouping.counters().vectors_total();
        let mut said = format!(
            "{} in {}: {} as many, {} packets each\n\
             left the cache: {} full, {} for another flow, {} since a time did not fit, {} flushed\n",
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
                "wide buffers: {} taken, {} times none was free\n",
                grouped(widened),
                grouped(denied)
            );
        }
        if self.asked > 0 {
            said += &format!("{} asked for by agents\n", count_of(self.asked, "slot"));
        }
        for (to, given) in self.given() {
            said += &format!(
                "{}: {} in {}, {} bytes",
                to.name,
                count_of(given.sent, "vector"),
                count_of(to.datagrams, "datagram"),
                grouped(to.bytes)
            );
            if given.filtered > 0 {
                said += &format!("; the rules do not choose {}", grouped(given.filtered));
            }
            if given.not_carried > 0 {
                said += &format!("; the form cannot hold {}", grouped(given.not_carried));
            }
            said.push('\n');
        }
        said
    }

    fn as_json(&self) -> serde_json::Value {
        let counters = self.grouping.counters();
        let [full, collision, time, flushed] = counters.vectors;
        let Counted {
            packets: _,
            filtered,
            not_ip,
            cut,
            dropped,
        } = self.features.counted;
        let to = self.given().map(|(to, given)| {
            json!({
                "to": to.name,
                "vectors": given.sent,
                "datagrams": to.datagrams,
                "bytes": to.bytes,
                "not_chosen": given.filtered,
                "not_carried": given.not_carried,
                "datagrams_not_sent": to.unsent,
            })
        });
        json!({
            "packets": counters.packets,
            "vectors": counters.vectors_total(),
            "packets_in_vectors": counters.tuples,
            "left": {"full": full, "collision": collision, "time": time, "flushed": flushed},
            "wide_buffers": {"taken": counters.widened, "none_free": counters.denied},
            "slots_asked_for": self.asked,
            "not_matched": filtered,
            "not_ip": not_ip,
            "cut": cut,
            "lost": dropped,
            "destinations": to.collect::<Vec<_>>(),
        })
    }

    fn given(&self) -> impl Iterator<Item = (&Outlet, super::form::Given)> {
        let targets = self.outlets.targets();
        targets.filter_map(|to| Some((to, self.grouping.given(to.id)?)))
    }
}

/// Packets of a vector on average.
#[allow(clippy::cast_precision_loss, reason = "an average to read")]
fn each(tuples: u64, vectors: u64) -> String {
    match vectors {
        0 => String::from("0"),
        _ => format!("{:.1}", tuples as f64 / vectors as f64),
    }
}

impl Take for Running {
    fn prepare(&mut self) -> Result<Reach> {
        self.outlets.prepare()
    }

    fn begin(&mut self, filter: Option<Filter>) -> Result<()> {
        self.has_begun = true;
        self.features.filter(filter);
        self.outlets.create()?;
        if !self.interfaces.is_empty() {
            let outlets = &mut self.outlets;
            self.grouping
                .announce(|id, bytes| outlets.announce(id, bytes));
            info!("grouping packets of {}", self.interfaces);
        }
        Ok(())
    }

    fn packet(&mut self, link: LinkType, packet: &PacketRef<'_>) -> Result<()> {
        if self.is_done() {
            return Ok(());
        }
        let before = self.features.counted.packets;
        if let Some(features) = self.features.of(link, packet) {
            self.batch.push(features);
        }
        let taken = self.features.counted.packets - before;
        self.left = self.left.map(|left| left - taken);
        if self.batch.len() >= BATCH {
            self.push()?;
        }
        Ok(())
    }

    fn pause(&mut self) -> Result<()> {
        if self.interfaces.is_empty() {
            return Ok(());
        }
        let asked = match self.control_at.elapsed() >= CONTROL_EVERY {
            true => {
                self.control_at = Instant::now();
                self.announce_again();
                self.outlets.asked(self.cache_slots)
            }
            false => Vec::new(),
        };
        let outlets = &mut self.outlets;
        let mut send = |id, bytes: &[u8]| outlets.send(id, bytes);
        self.grouping.push(&self.batch, &mut send);
        self.batch.clear();
        let mut flushed = asked.len();
        for slot in asked {
            self.grouping.flush_slot(slot, &mut send);
        }
        self.asked += flushed as u64;
        if let Some(turn) = &mut self.slots {
            let (first, due) = turn.due();
            for slot in first..first + due {
                self.grouping.flush_slot(slot % turn.slots, &mut send);
            }
            flushed += due as usize;
        }
        if flushed > 0 {
            self.grouping.send_begun(&mut send);
        }
        self.outlets.check()
    }

    fn is_done(&self) -> bool {
        self.left == Some(0) || self.outlets.is_complete()
    }
}

/// Slots of the cache that are flushed one after the other, all of them in a stated time.
struct SlotsInTurn {
    slots: u32,
    every: Duration,
    began: Instant,
    flushed: u64,
}

impl SlotsInTurn {
    /// The next slot, and how many from it on are due: each at most once.
    fn due(&mut self) -> (u32, u32) {
        let slots = u128::from(self.slots);
        let all = self.began.elapsed().as_nanos() * slots / self.every.as_nanos();
        let all: u64 = strata_wire::clamped(all);
        let due = (all - self.flushed.min(all)).min(u64::from(self.slots));
        let first = self.flushed % u64::from(self.slots);
        // After a long break, what is overdue is flushed once.
        self.flushed = all;
        (strata_wire::exact(first), strata_wire::exact(due))
    }
}
