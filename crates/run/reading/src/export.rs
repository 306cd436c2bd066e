//! `strata export`: a log back into capture files, or its flows to where others collect them.

mod anonymized;
mod command;
pub mod dedup;
mod done;
mod files;
mod rotation;
mod tls_keys;

use std::io::{self, IsTerminal as _, Write, stdout};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anonymized::AnonymizeArgs;
use anyhow::Result;
use clap::ValueEnum;
use dedup::DedupArgs;
use done::{Count, Done};
use files::{Files, Form, Target};
use rotation::RotateArgs;
use strata_archive::ArchiveError;
use strata_capture::WriteError;
use strata_flow_export::FlowCollector;
use strata_query::{
    ByLink, ExportOptions, Exported, ExportedFlows, FileFormat, Find, FlowOptions, FlowProtocol,
    FlowTable, LoggedPacket, PacketTable, RecordFormat, WrittenFlows, export,
};
use strata_store::Log;
use strata_stream_run::{LineRecords, WhenFull};
use strata_terminal::key::KeyArgs;
use strata_terminal::logging::QuietArgs;
use strata_terminal::output::{Content, Output, print_json, refuse, suffix};
use strata_terminal::progress::{Progress, bytes_of};
use strata_terminal::selection::names::NameFiles;
use strata_terminal::selection::{KeptArgs, Logs, SpanArgs, check_fit, say_no_match};
use strata_terminal::text;
use strata_wire::Printable;
use tracing::info;

use crate::flows::{self, TimeoutArgs};

/// Arguments of `strata export`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata export log/ -w out.pcapng 'host 10.0.0.1 and tcp'
  strata export log/ --from 13:05 --to 13:20 -w - | wireshark -k -i -
  strata export log/ -w out.pcap.gz
  strata export tap1/ tap2/ -w both.pcapng 'host 10.0.0.1'
  strata export tap1/ tap2/ -w flows.csv
  strata export log/ -w out.pcapng --tls-keys sslkeys.log 'port 443'
  strata export log/ -w 'hours/%Y%m%d-%H.pcapng' -G 3600 -z gzip
  strata export log/ -w public.pcapng --anonymize anon.key
  strata export log/ -w flows.csv 'net 10.0.0.0/8'
  strata export log/ -w flows.ipfix --active-timeout 60s --idle-timeout 15s
  strata export log/ -w packets.parquet -F packets-parquet 'port 53'
  strata export log/ -w dmz.pcapng --names networks.txt 'tag dmz and tcp'
  strata export log/ -F json -w - | jq .dst
  strata export log/ --to-stream streams/flows 'port 443'
  strata export log/ --to-collector netflow.example:4739
  strata export log/ --to-collector netflow.example -F netflow9

Packets of several logs are merged by time, flows by the time of their last packet. Each row of CSV,
JSON and Parquet then has a column 'log', the name of its log; in IPFIX and NetFlow 9, the
observation domain or source ID is the number of the log on the command line, from 1.

Exit status: 0 if everything selected was written; 1 if not, because of an invalid filter or time,
no log, damaged packets, packets whose interface or classification record is missing from the log,
or a filter that applies to no interface of the log (standard error names it); also 1 if a command
of -z failed; 2 if the command line is invalid.")]
pub struct Args {
    /// Read the log in this directory. Further logs may follow, up to 64 in all.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    /// Write to this file, replacing it; - is standard output. A file whose name ends in .gz or
    /// .zst is compressed. Files of the log are never overwritten.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: Option<PathBuf>,

    /// Append flows to this stream (`strata stream create` makes one) instead of writing a file:
    /// each flow is a record with a JSON object.
    #[arg(long, value_name = "DIR/NAME", conflicts_with = "write")]
    to_stream: Option<String>,

    /// Send flows as IPFIX, or with -F netflow9 as NetFlow 9, over UDP to this collector (nfcapd,
    /// pmacct, Akvorado and others) instead of writing a file. The port is 4739, or 2055 for
    /// NetFlow 9, unless given. Lost datagrams are not sent again; the collector sees a gap in the
    /// sequence numbers.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["write", "to_stream"])]
    to_collector: Option<String>,

    /// Send the collector at most this many datagrams per second. A datagram has up to 18 records
    /// of IPv4 flows, or 13 of IPv6 flows.
    #[arg(long, value_name = "N", default_value_t = 2_000, requires = "to_collector",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pps: u64,

    /// Set the file format. By default, the file's name decides: pcap for .pcap, .cap and .dmp; csv
    /// for .csv; json for .json, .jsonl and .ndjson; ipfix for .ipfix; flows-parquet for .parquet;
    /// pcapng for .pcapng, .ntar and names without a suffix. Names with other suffixes are refused.
    #[arg(short = 'F', long, value_enum)]
    format: Option<Format>,

    #[command(flatten)]
    span: SpanArgs,

    /// Omit class, score, granularity and reason from packet comments.
    #[arg(long)]
    no_comments: bool,

    /// Add the TLS secrets in this file (the SSLKEYLOGFILE of a browser or server) to a pcapng
    /// file, so that Wireshark can decrypt the payload that was kept.
    #[arg(long, value_name = "FILE")]
    tls_keys: Option<PathBuf>,

    #[command(flatten)]
    anonymize: AnonymizeArgs,

    #[command(flatten)]
    dedup: DedupArgs,

    #[command(flatten)]
    kept: KeptArgs,

    #[command(flatten)]
    timeouts: TimeoutArgs,

    #[command(flatten)]
    rotate: RotateArgs,

    #[command(flatten)]
    names: NameFiles,

    #[command(flatten)]
    key: KeyArgs,

    /// Print the result as a JSON object: the amounts written, and the packets missing. (To write
    /// flows as JSON, use -F json.)
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    /// How little it says.
    pub quiet: QuietArgs,

    /// Select packets that match this tcpdump filter, which sees only the bytes that were kept. Flow
    /// records count only these packets; --class selects flows with at least one packet of the
    /// class.
    #[arg(value_name = "LOG... FILTER")]
    more: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// pcapng, with comments, and the interfaces and other metadata of the input.
    Pcapng,
    /// pcap with nanosecond timestamps; one link type only.
    Pcap,
    /// Flows as comma-separated values with a header line.
    Csv,
    /// Flows as JSON objects, one per line, times as RFC 3339.
    Json,
    /// Flows as IPFIX, to a file or a collector, one record per direction.
    Ipfix,
    /// Flows as NetFlow 9, to a collector only, one record per direction.
    Netflow9,
    /// Flows as a Parquet file, with the columns of the log's table `flows`.
    FlowsParquet,
    /// Packets as a Parquet file, one row per packet: times, addresses, lengths, class, reason; no
    /// payload.
    PacketsParquet,
}

impl Format {
    /// The format for a file of this name: pcapng, if the name has no suffix.
    fn of(path: &Path) -> Result<Self> {
        Ok(match suffix(path).as_str() {
            "" | "pcapng" | "ntar" => Self::Pcapng,
            "pcap" | "cap" | "dmp" => Self::Pcap,
            "csv" => Self::Csv,
            "json" | "jsonl" | "ndjson" => Self::Json,
            "ipfix" => Self::Ipfix,
            "parquet" => Self::FlowsParquet,
            other => {
                let other = Printable(other);
                return Err(refuse(format!(
                    "{}: the suffix '.{other}' is not that of a known format: write .pcapng, \
                     .pcap, .csv, .json, .ipfix \
                     or .parquet, or name the format with -F",
                    path.display()
                )));
            }
        })
    }

    fn is_packets(self) -> bool {
        matches!(self, Self::Pcapng | Self::Pcap | Self::PacketsParquet)
    }

    fn written(self) -> Written {
        match self {
            Self::Pcapng => Written::Packets(FileFormat::PcapNg),
            Self::Pcap => Written::Packets(FileFormat::Pcap),
            Self::Csv => Written::Flows(RecordFormat::Csv),
            Self::Json => Written::Flows(RecordFormat::Json),
            Self::Ipfix => Written::Flows(RecordFormat::Ipfix),
            Self::Netflow9 => Written::Flows(RecordFormat::Datagrams(FlowProtocol::Netflow9)),
            Self::FlowsParquet => Written::FlowTable,
            Self::PacketsParquet => Written::PacketTable,
        }
    }

    fn content(self) -> Content {
        match self {
            Self::Csv | Self::Json => Content::Text,
            Self::Pcapng
            | Self::Pcap
            | Self::Ipfix
            | Self::Netflow9
            | Self::FlowsParquet
            | Self::PacketsParquet => Content::Binary,
        }
    }
}

/// The format of this export.
fn format(args: &Args, write: &Path) -> Result<Format> {
    match (&args.to_stream, args.format) {
        (Some(_), _) => Ok(Format::Json),
        (None, None) if args.to_collector.is_some() => Ok(Format::Ipfix),
        (None, Some(format)) => Ok(format),
        (None, None) => Format::of(write),
    }
}

/// What is written.
enum Written {
    Packets(FileFormat),
    Flows(RecordFormat),
    PacketTable,
    FlowTable,
}

impl Args {
    fn tls_keys(&self) -> Result<Vec<u8>> {
        let file = self.tls_keys.as_deref();
        file.map_or_else(|| Ok(Vec::new()), tls_keys::read)
    }

    /// Where to write: required, unless flows go elsewhere.
    fn write(&self) -> Result<&Path> {
        let problem = "no output: give -w FILE, or -w - for standard output";
        self.write.as_deref().ok_or_else(|| refuse(problem))
    }
}

/// Writes flows to a stream.
fn to_stream(place: &str, logs: &Logs, find: &Find<'_>, options: &FlowOptions<'_>) -> Result<Done> {
    let feed = strata_terminal::feed::feed(&strata_terminal::feed::place(place)?, WhenFull::Wait)?;
    let mut lines = LineRecords::new(feed);
    let exported = records(logs, &mut lines, RecordFormat::Json, find, options)?;
    let counts = lines.into_feed().finish()?;
    let exported = ExportedFlows {
        flows: counts.written,
        records: counts.written,
        ..exported
    };
    Ok(Done::of_flows(exported, counts.lost))
}

/// Sends flows to a collector.
fn to_collector(
    to: &str,
    (per_second, format): (u64, Format),
    logs: &Logs,
    find: &Find<'_>,
    options: &FlowOptions<'_>,
) -> Result<Done> {
    let protocol = match format {
        Format::Netflow9 => FlowProtocol::Netflow9,
        _ => FlowProtocol::Ipfix,
    };
    let collector = flows::collector("--to-collector", to, protocol)?;
    let collector = FlowCollector::connect(collector, per_second)?;
    let datagrams = RecordFormat::Datagrams(protocol);
    let exported = records(logs, collector, datagrams, find, options)?;
    Ok(Done::of_flows(exported, 0))
}

/// Writes the flows of all logs as records.
fn records(
    logs: &Logs,
    output: impl Write,
    format: RecordFormat,
    find: &Find<'_>,
    options: &FlowOptions<'_>,
) -> Result<ExportedFlows> {
    let mut written = WrittenFlows::new(output, format, logs.names())?;
    let mut exported = logs.each_flow(find, options, |log, record| {
        Ok(written.write(log, record).map_err(unwritten)?)
    })?;
    written.finish(&mut exported)?;
    if let RecordFormat::Ipfix | RecordFormat::Datagrams(_) = format {
        for (number, name) in (1..).zip(logs.names()) {
            info!("observation domain {number}: {}", Printable(&name));
        }
    }
    Ok(exported)
}

/// The error of an output.
fn unwritten(error: io::Error) -> ArchiveError {
    ArchiveError::Write(WriteError::Io(error))
}

/// Writes the flows of all logs as a table.
fn flow_table(
    logs: &Logs,
    output: &mut Output,
    find: &Find<'_>,
    options: &FlowOptions<'_>,
) -> Result<ExportedFlows> {
    let mut table = FlowTable::new(output, logs.names())?;
    let mut exported = logs.each_flow(find, options, |log, record| {
        Ok(table.write(log, record).map_err(unwritten)?)
    })?;
    table.finish(&mut exported)?;
    Ok(exported)
}

/// Writes the packets of all logs as a table.
fn packet_table(args: &Args, logs: &Logs, output: &mut Output, find: &Find<'_>) -> Result<Done> {
    let mut table = PacketTable::new(output, logs.names())?;
    let exported = logs.each(find, &args.kept.kept(), |log, packet| {
        table.write(log, packet).map_err(unwritten)?;
        Ok(ControlFlow::Continue(()))
    })?;
    table.finish()?;
    Ok(Done::of_packets(exported))
}

/// Writes packets of one log or several, without doubles, anonymized, or to files that follow one another.
fn merged(
    args: &Args,
    logs: &Logs,
    target: Target,
    format: FileFormat,
    find: &Find<'_>,
) -> Result<Done> {
    let form = match args.anonymize.anonymizer()? {
        Some(by) => Form::anonymized(by),
        None => Form::known(logs, !args.no_comments, args.tls_keys()?)?,
    };
    let mut files = Files::new(target, form, format)?;
    let mut write = |log: usize, packet: &LoggedPacket<'_>| files.packet(log, packet);
    let mut doubles = args.dedup.doubles()?;
    let exported = logs.each(find, &args.kept.kept(), |log, packet| {
        match &mut doubles {
            Some(doubles) => doubles.packet(log, packet, &mut write)?,
            None => write(log, packet)?,
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let removed = doubles.map(|doubles| doubles.finish(&mut write));
    let removed = removed.transpose()?;
    let written = files.finish()?;
    if let Some(removed) = removed {
        dedup::say(removed);
    }
    let removed = removed.map(|counts| counts.removed);
    let packets = removed.map_or(exported.packets, |removed| {
        exported.packets.saturating_sub(removed)
    });
    Ok(Done {
        count: Count::Packets(packets),
        damage: exported.damage,
        left_out: exported.left_out,
        untested: exported.untested,
        doubles: removed,
        written,
    })
}

/// Writes packets of one log.
fn packets(
    args: &Args,
    log: &Log,
    output: &mut Output,
    format: FileFormat,
    find: &Find<'_>,
) -> Result<Done> {
    let filter = find.filter.cloned();
    let mut by_link = filter.map(|filter| ByLink::new(filter, say_no_match));
    let options = ExportOptions {
        select: find.select(),
        matches: by_link.as_mut().map(ByLink::as_matches),
        comments: !args.no_comments,
        kept: args.kept.kept(),
        tls_keys: args.tls_keys()?,
        ..ExportOptions::default()
    };
    let exported = export(log, output, format, find, options)?;
    check_fit(by_link.as_ref().and_then(ByLink::misfit))?;
    Ok(Done::of_packets(Exported {
        untested: by_link.map_or(0, |by_link| by_link.untested()),
        ..exported
    }))
}

/// Writes the file, or several that follow one another.
fn to_files(
    (args, write, format): (&Args, &Path, Format),
    logs: &Logs,
    find: &Find<'_>,
    of_flows: &FlowOptions<'_>,
) -> Result<Done> {
    let read = args.anonymize.anonymize.iter().chain(&args.tls_keys);
    let sources = args.key.sources(logs.all()).files(read);
    let sources = sources.files(&args.names.files()?);
    if let (Some((rotation, command)), Written::Packets(format)) =
        (args.rotate.of(write)?, format.written())
    {
        let target = Target::Rotated(Box::new(rotation), sources, command);
        return merged(args, logs, target, format, find);
    }
    let mut output = Output::create(write, format.content(), &sources)?;
    let is_plain = args.dedup.dedup.is_none() && args.anonymize.anonymize.is_none();
    let to = &mut output;
    let done = match format.written() {
        Written::Packets(format) => match logs.only().filter(|_| is_plain) {
            Some(log) => packets(args, log, to, format, find)?,
            None => return merged(args, logs, Target::One(output), format, find),
        },
        Written::PacketTable => packet_table(args, logs, to, find)?,
        Written::Flows(format) => Done::of_flows(records(logs, to, format, find, of_flows)?, 0),
        Written::FlowTable => Done::of_flows(flow_table(logs, to, find, of_flows)?, 0),
    };
    output.finish()?;
    Ok(done)
}

/// Exports, and prints what was written and what is missing.
pub fn run(args: &Args) -> Result<()> {
    let is_json = args.format.is_none_or(|format| format == Format::Json);
    if args.to_stream.is_some() && !is_json {
        return Err(refuse(
            "--to-stream: records are flows as JSON: leave out -F",
        ));
    }
    let is_sent = |format| matches!(format, Format::Ipfix | Format::Netflow9);
    if args.to_collector.is_some() && !args.format.is_none_or(is_sent) {
        return Err(refuse(
            "--to-collector: flows are sent as IPFIX or NetFlow 9: write -F ipfix or -F netflow9, or \
             leave out -F",
        ));
    }
    if args.format == Some(Format::Netflow9) && args.to_collector.is_none() {
        return Err(refuse(
            "-F netflow9: NetFlow 9 cannot be written to a file: send it with --to-collector, or \
             write ipfix",
        ));
    }
    let is_to_file = args.to_stream.is_none() && args.to_collector.is_none();
    let write = match is_to_file {
        false => Path::new("-"),
        true => args.write()?,
    };
    if args.json && is_to_file && write == Path::new("-") {
        return Err(refuse(
            "--json: the result goes to standard output, as does the export: name a file with -w",
        ));
    }
    let is_shown = is_to_file && write == Path::new("-") && stdout().is_terminal();
    let is_hidden = is_shown || args.quiet.is_quiet();
    let progress = Progress::unless(is_hidden, Progress::of_bytes);
    let (logs, words) = Logs::open(&args.log, &args.more, &args.key, &progress)?;
    let filter = text::filter_with(words, &args.names.read()?)?;
    let find = logs.find(&args.span, filter.as_ref())?;
    if find.from_ns.is_none() && find.to_ns.is_none() {
        let bytes = logs.all().map(|(_, log)| bytes_of(log));
        progress.expect_bytes(bytes.fold(0, u64::saturating_add));
    }
    let of_flows = FlowOptions {
        class: args.kept.class.as_deref(),
        timeouts: args.timeouts.timeouts()?,
        refused: say_no_match,
        ..FlowOptions::default()
    };
    let format = format(args, write)?;
    check_options(args, format)?;
    let (done, verb) = match (&args.to_stream, &args.to_collector) {
        (Some(place), _) => (to_stream(place, &logs, &find, &of_flows)?, "appended"),
        (None, Some(to)) => {
            let sent = to_collector(to, (args.pps, format), &logs, &find, &of_flows)?;
            (sent, "sent")
        }
        (None, None) => {
            let done = to_files((args, write, format), &logs, &find, &of_flows)?;
            (done, "exported")
        }
    };
    drop(progress);
    done.say(verb);
    match done.is_empty() {
        true => logs.say_nothing_found(&find, Some(&args.kept)),
        false => logs.say_not_in_time(&find),
    }
    logs.say_other_times();
    let lacking = logs.say_lost(&find)?;
    let ended = done.ended();
    if args.json {
        print_json(&done.answer(&ended, lacking))?;
    }
    ended
}

/// Refuses options that say nothing of what is written.
fn check_options(args: &Args, format: Format) -> Result<()> {
    let is_file_of_packets = matches!(format, Format::Pcapng | Format::Pcap);
    if args.dedup.dedup.is_some() && !is_file_of_packets {
        return Err(refuse(
            "--dedup applies only to pcapng and pcap: flow records and Parquet files always cover \
             all packets",
        ));
    }
    if args.anonymize.anonymize.is_some() && !is_file_of_packets {
        return Err(refuse(
            "--anonymize applies only to pcapng and pcap: for flow records or Parquet, first \
             record the anonymized file (`strata record -r`), and export from that log",
        ));
    }
    if args.rotate.any() && !is_file_of_packets {
        return Err(refuse(
            "-G, -C and -z apply only to pcapng and pcap: flow records and Parquet are exported to \
             a single file",
        ));
    }
    if !format.is_packets()
        && (args.kept.granularity.is_some()
            || args.kept.reason.is_some()
            || args.kept.process.is_some())
    {
        return Err(refuse(
            "--granularity, --reason and --process apply only to packets, because the packets of a flow may \
             differ in both: write pcapng or packets-parquet, or leave these options out",
        ));
    }
    if args.tls_keys.is_some() && format != Format::Pcapng {
        return Err(refuse(
            "--tls-keys applies only to pcapng: other formats cannot hold TLS secrets",
        ));
    }
    if format.is_packets() && args.timeouts.any() {
        return Err(refuse(
            "--active-timeout and --idle-timeout apply only to flow records: write csv, json, \
             ipfix or flows-parquet, or leave these options out",
        ));
    }
    Ok(())
}
