//! `strata export`: back to capture files.

use std::fs::File;
use std::io::{BufWriter, Write, stdout};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use strata_archive::{
    Find, FlowRecord, RecordFormat, RecordWriter, export, flow_records, snapshot,
};
use strata_filter::Filter;
use strata_store::export::{ExportOptions, Exported, FileFormat};
use strata_store::{Log, RealDisk, Select};
use strata_wire::LinkType;

use crate::key::KeyArgs;
use crate::text;

/// Arguments of `strata export`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata export log/ -w out.pcapng 'host 10.0.0.1 and tcp'
  strata export log/ --from 13:05 --to 13:20 -w - | wireshark -k -i -
  strata export log/ -F pcap -w out.pcap
  strata export log/ -F ipfix -w flows.ipfix 'net 10.0.0.0/8'")]
pub(crate) struct Args {
    /// Directory of the log.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    /// File to write; - is standard output.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: PathBuf,

    /// Format of the file.
    #[arg(short = 'F', long, value_enum, default_value_t = Format::Pcapng)]
    format: Format,

    /// Packets from this time on: 13:05, 2026-01-31T13:05, seconds since 1970.
    /// A time without a date is on the day of the log's first packet.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,

    /// Packets before this time.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,

    /// Do not say class, score, granularity and reason in packet comments.
    #[arg(long)]
    no_comments: bool,

    #[command(flatten)]
    key: KeyArgs,

    /// Only packets that match, in the filter language of tcpdump, judged by the
    /// bytes that were kept. Options go before it.
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    filter: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// pcapng, with comments, interfaces and what else the input said.
    Pcapng,
    /// pcap with nanoseconds; one link type only.
    Pcap,
    /// Flows as comma-separated values with a header line.
    Csv,
    /// Flows as JSON objects, one per line.
    Json,
    /// Flows as an IPFIX file, a record for each direction.
    Ipfix,
}

/// Filters compiled per link type, as packets of new ones come.
struct ByLink {
    filter: Filter,
    /// Few: looked through for every packet.
    programs: Vec<(LinkType, Option<strata_filter::Program>)>,
}

impl ByLink {
    fn matches(&mut self, link: LinkType, packet: &[u8], wire_len: u32) -> bool {
        let known = self.programs.iter().position(|(of, _)| *of == link);
        let at = known.unwrap_or_else(|| {
            let compiled = self.filter.compile(link);
            if let Err(problem) = &compiled {
                eprintln!("strata: warning: the filter matches no packet of {link}: {problem}");
            }
            self.programs.push((link, compiled.ok()));
            self.programs.len() - 1
        });
        let (_, program) = &self.programs[at];
        program
            .as_ref()
            .is_some_and(|program| program.matches(packet, wire_len))
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let filter = text::filter(&args.filter)?;
    let log = args.key.open(&args.log)?;
    let reference = first_packet_ns(&log)?;
    let time = |text: &Option<String>| {
        text.as_deref()
            .map(|text| text::parse_time(text, reference))
            .transpose()
    };
    let find = Find {
        from_ns: time(&args.from)?,
        to_ns: time(&args.to)?,
        filter: filter.as_ref(),
    };
    if let (Some(from), Some(to)) = (find.from_ns, find.to_ns) {
        anyhow::ensure!(
            from < to,
            "--from is not before --to: give dates with the times"
        );
    }
    let mut by_link = filter.clone().map(|filter| ByLink {
        filter,
        programs: Vec::new(),
    });
    let options = ExportOptions {
        select: find.select(),
        matches: by_link.as_mut().map(|by_link| {
            let matches = |link, packet: &[u8], len| by_link.matches(link, packet, len);
            Box::new(matches) as Box<dyn FnMut(LinkType, &[u8], u32) -> bool>
        }),
        comments: !args.no_comments,
    };
    let format = match args.format {
        Format::Pcapng => FileFormat::PcapNg,
        Format::Pcap => FileFormat::Pcap,
        Format::Csv => return flows(args, &log, &find, RecordFormat::Csv),
        Format::Json => return flows(args, &log, &find, RecordFormat::Json),
        Format::Ipfix => return flows(args, &log, &find, RecordFormat::Ipfix),
    };
    let exported = if args.write.as_os_str() == "-" {
        export(
            &log,
            BufWriter::new(stdout().lock()),
            format,
            &find,
            options,
        )?
    } else {
        let named = || format!("{}: cannot write", args.write.display());
        let file = File::create(&args.write).with_context(named)?;
        let mut output = BufWriter::with_capacity(1 << 20, file);
        let exported = export(&log, &mut output, format, &find, options);
        let exported = exported.inspect_err(|_| {
            // Half a file would pass for a whole one.
            let _ = std::fs::remove_file(&args.write);
        })?;
        output.flush().with_context(named)?;
        exported
    };
    report(&exported)
}

/// Writes flows instead of packets.
fn flows(args: &Args, log: &Log, find: &Find<'_>, format: RecordFormat) -> Result<()> {
    let output: Box<dyn Write> = if args.write.as_os_str() == "-" {
        Box::new(BufWriter::new(stdout().lock()))
    } else {
        let named = || format!("{}: cannot write", args.write.display());
        let file = File::create(&args.write).with_context(named)?;
        Box::new(BufWriter::new(file))
    };
    let mut writer = RecordWriter::new(output, format)?;
    for part in &log.archive().parts {
        let take = |record: &FlowRecord| anyhow::Ok(writer.write(record)?);
        flow_records(log.disk().as_ref(), part, find, take)?;
    }
    // Flows of what is not compacted are found by compacting it, for this once.
    let scratch = tempfile::tempdir().context("cannot make a temporary directory")?;
    let disk = RealDisk::at(scratch.path());
    let (parts, damage) = snapshot(log, &disk)?;
    for part in &parts {
        let take = |record: &FlowRecord| anyhow::Ok(writer.write(record)?);
        flow_records(&disk, part, find, take)?;
    }
    let written = writer.written;
    drop(writer.finish()?);
    eprintln!("strata: {} flows exported", text::count(written));
    for damage in &damage {
        eprintln!("strata: {damage}");
    }
    if !damage.is_empty() {
        bail!("{} damaged block files were left out", damage.len());
    }
    Ok(())
}

fn report(exported: &Exported) -> Result<()> {
    eprintln!("strata: {} packets exported", text::count(exported.packets));
    for damage in &exported.damage {
        eprintln!("strata: {damage}");
    }
    if !exported.damage.is_empty() {
        bail!("{} damaged places in the log", exported.damage.len());
    }
    Ok(())
}

/// When the log's first packet arrived, for times without a date.
pub(crate) fn first_packet_ns(log: &Log) -> Result<u64> {
    let parts = log.archive().parts.iter().filter(|part| part.packets > 0);
    if let Some(first) = parts.map(|part| part.ts_min_ns).min() {
        return Ok(first);
    }
    let everything = Select {
        without_records: true,
        ..Select::default()
    };
    for recording in log.recordings() {
        for block in log.blocks(recording, &everything).flatten() {
            if block.header.packets > 0 {
                return Ok(block.header.ts_min_ns);
            }
        }
    }
    Ok(0)
}
