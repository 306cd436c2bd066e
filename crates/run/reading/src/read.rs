//! `strata read`: the packets of logs as lines of text.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::Result;
use clap::ArgAction;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use strata_query::{LoggedPacket, PacketRows};
use strata_terminal::key::KeyArgs;
use strata_terminal::output::{Standard, standard};
use strata_terminal::progress::Progress;
use strata_terminal::selection::{KeptArgs, Logs, SpanArgs, report, say_untested};
use strata_terminal::text;
use strata_wire::{Printable, PrintableJson};

use crate::line::Line;
use crate::names::{NamesArgs, Owners};

/// Arguments of `strata read`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata read log/
  strata read log/ 'host 10.0.0.1 and tcp port 443' | less
  strata read log/ --from 13:05 --to 13:20 -c 100
  strata read log/ --class anomalous --json | jq .dst
  strata read log/ --dns-names --mmdb GeoLite2-ASN.mmdb 'tcp[tcpflags] = tcp-syn'
  strata read host/ --process nginx 'tcp port 443'
  strata read tap1/ tap2/ 'host 10.0.0.1'
  strata read log/ --reason alert

A line has the time, the packet in a short form of tcpdump -n's notation, the class and the reason
as in the comments of an export, the names, countries and systems of its addresses that --names,
--dns-names and --mmdb provide, and its processes that record --processes noted. For a tunnelled
packet, the innermost packet is shown. Recordings follow one another, as in an export; the packets
of each are in order of time. Packets of several logs are merged by time, and each line begins with
the name of the log. 'length' is the length of the payload on the wire (for ICMP and other protocols
without ports: of the whole message), even if only a part was kept. Addresses and ports are numbers:
-n, as for tcpdump, is accepted and changes nothing.

Exit status: 0 if everything selected is printed; 1 if not, because of an invalid filter or time, no
log, damaged packets, packets whose interface or classification record is missing from the log, or a
filter that applies to no interface of the log (standard error names it); 2 if the command line is
invalid.")]
pub struct Args {
    /// Read the log in this directory. Further logs may follow, up to 64 in all.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    #[command(flatten)]
    print: PrintArgs,

    /// Accept tcpdump's option, also as -nn: addresses and ports are numbers, unless --dns-names or
    /// another option of names is given.
    #[arg(short = 'n', hide = true, action = ArgAction::Count)]
    numbers: u8,

    /// Print a JSON object per packet, with the columns of `strata export -F packets-parquet`,
    /// tcp_flags, the length as in the text, src_name, dst_name, src_country, dst_country, src_as
    /// and dst_as if known, src_process, src_pid, src_cgroup and the same for dst if noted, and, if
    /// several logs are read, the name of the log. Times are in RFC 3339 and UTC.
    #[arg(long, conflicts_with_all = ["utc", "date"])]
    json: bool,

    /// Select packets that match this tcpdump filter, which sees only the bytes that were kept.
    #[arg(value_name = "LOG... FILTER")]
    more: Vec<String>,
}

/// Which packets are printed, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct PrintArgs {
    /// Stop after printing this many packets.
    #[arg(short = 'c', long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    #[command(flatten)]
    pub(crate) span: SpanArgs,

    #[command(flatten)]
    pub(crate) kept: KeptArgs,

    #[command(flatten)]
    pub(crate) clock: ClockArgs,

    #[command(flatten)]
    pub(crate) names: NamesArgs,

    #[command(flatten)]
    pub(crate) key: KeyArgs,
}

/// How times are shown.
#[derive(Debug, clap::Args)]
pub(crate) struct ClockArgs {
    /// Print times in UTC instead of local time.
    #[arg(long)]
    utc: bool,

    /// Print the date before each time.
    #[arg(long)]
    date: bool,
}

/// How times are shown.
pub(crate) struct Clock {
    zone: TimeZone,
    pattern: &'static str,
}

impl Clock {
    pub(crate) fn of(args: &ClockArgs) -> Self {
        Self {
            zone: match args.utc {
                true => TimeZone::UTC,
                false => text::zone_to_show(),
            },
            pattern: match args.date {
                true => "%Y-%m-%d %H:%M:%S%.6f",
                false => "%H:%M:%S%.6f",
            },
        }
    }

    pub(crate) fn text(&self, packet: &LoggedPacket<'_>) -> String {
        let time = Timestamp::from_nanosecond(i128::from(packet.ts_ns));
        match time {
            Ok(time) if packet.has_timestamp => {
                let zoned = time.to_zoned(self.zone.clone());
                zoned.strftime(self.pattern).to_string()
            }
            _ => String::from("no time"),
        }
    }
}

/// Standard output: line by line to a terminal, else in larger pieces.
pub(crate) enum Lines {
    Each(Standard),
    Together(BufWriter<Standard>),
}

impl Lines {
    pub(crate) fn new() -> Self {
        match io::stdout().is_terminal() {
            true => Self::Each(standard()),
            false => Self::Together(BufWriter::with_capacity(1 << 16, standard())),
        }
    }

    pub(crate) fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Each(out) => out,
            Self::Together(out) => out,
        }
    }
}

/// Prints the packets.
pub fn run(args: &Args) -> Result<()> {
    let (logs, filter) = Logs::open(&args.log, &args.more, &args.print.key, &Progress::none())?;
    let names = args.print.names.read()?;
    let filter = text::filter_with(filter, &names)?;
    let find = logs.find(&args.print.span, filter.as_ref())?;
    let mut owners = Owners::of(&args.print.names, names, &logs, &find)?;
    let clock = Clock::of(&args.print.clock);
    let mut lines = Lines::new();
    let mut rows: Vec<PacketRows> = (0..logs.len()).map(|_| PacketRows::default()).collect();
    let mut left = args.print.count;
    let exported = logs.each(&find, &args.print.kept.kept(), |log, packet| {
        let headers = rows[log].headers(packet);
        let line = Line::of(packet, &headers).with(owners.ends(&headers)?);
        let log = logs.name(log);
        match args.json {
            true => {
                let object = line.json(log);
                writeln!(
                    lines.writer(),
                    "{}",
                    PrintableJson(&serde_json::to_string(&object)?)
                )?;
            }
            false => writeln!(
                lines.writer(),
                "{}{} {line}",
                named(log),
                clock.text(packet)
            )?,
        }
        Ok(one_less(&mut left))
    })?;
    lines.writer().flush()?;
    match exported.packets {
        0 => logs.say_nothing_found(&find, Some(&args.print.kept)),
        _ => logs.say_not_in_time(&find),
    }
    say_untested(exported.untested);
    logs.say_other_times();
    logs.say_lost(&find)?;
    report(&exported.damage, exported.left_out)
}

/// What a line begins with if there are several logs.
pub(crate) fn named(log: Option<&str>) -> String {
    log.map_or_else(String::new, |log| format!("{}: ", Printable(log)))
}

/// Breaks once `left` packets have been shown, if that is a number.
pub(crate) fn one_less(left: &mut Option<u64>) -> ControlFlow<()> {
    *left = left.map(|left| left.saturating_sub(1));
    match left {
        Some(0) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    }
}
