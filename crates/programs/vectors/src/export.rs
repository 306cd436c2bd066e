//! `strata gpv export`: the vectors of a capture or a log, at rest.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use strata_capture::PacketRef;
use strata_filter::Filter;
use strata_gpv::{Column, Columns};
use strata_gpv_run::VectorTable;
use strata_query::Find;
use strata_store::Sources;
use strata_terminal::key::KeyArgs;
use strata_terminal::output::{Content, Output, check, refuse};
use strata_terminal::packets::{Take, captured, damaged, logged, open_log};
use strata_terminal::text::{self, count_of};
use strata_wire::LinkType;
use tracing::info;

use super::{CAPTURED_NAMES, CacheArgs, counted, failed, matches};

/// Arguments of `strata gpv export`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "\
strata gpv export -r FILE -w FILE [FILTER]
       strata gpv export LOG -w FILE [FILTER]",
    after_help = "\
Each row is a vector: a flow key, and the list `tuples` with a struct for each packet.

Examples:
  strata gpv export -r trace.pcap -w vectors.parquet 'tcp port 443'
  duckdb -c \"SELECT src, dst, unnest(tuples, recursive := true) FROM 'vectors.parquet'\""
)]
pub(super) struct Args {
    /// Read this capture file; - is standard input. Several files are merged in time order.
    #[arg(short = 'r', long = "read", value_name = "FILE")]
    read: Vec<PathBuf>,

    /// LOG, unless -r is given; FILTER, a tcpdump filter.
    #[arg(value_name = "LOG|FILTER")]
    words: Vec<String>,

    /// Write to this file, replacing it; - is standard output.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: PathBuf,

    /// Write these packet features, in addition to times.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        value_parser = super::column,
        default_value = CAPTURED_NAMES
    )]
    columns: Vec<Column>,

    #[command(flatten)]
    key: KeyArgs,

    #[command(flatten)]
    cache: CacheArgs,
}

pub(super) fn run(args: &Args) -> Result<()> {
    match (args.read.is_empty(), args.words.as_slice()) {
        (false, words) => {
            let filter = text::filter(words)?;
            let sources = Sources::default().files(&args.read);
            let mut exporting = Exporting::new(args, sources)?;
            let never = std::sync::Arc::default();
            let read = captured(&args.read, filter, &never, &mut exporting);
            // What was read of a damaged capture is written.
            let ended = exporting.finish();
            read.and(ended)
        }
        (true, [log, words @ ..]) => of_log(args, log, text::filter(words)?.as_ref()),
        (true, []) => Err(refuse("nothing to read: name a log, or -r FILE")),
    }
}

fn of_log(args: &Args, dir: &str, filter: Option<&Filter>) -> Result<()> {
    let dir = Path::new(dir);
    let log = open_log(&args.key, dir, "reads")?;
    let mut exporting = Exporting::new(args, args.key.sources([(dir, &log)]))?;
    exporting.begin(None)?;
    let find = Find {
        filter,
        ..Find::default()
    };
    let read = logged(&log, &find, |logged, packet| {
        exporting.packet(logged.link, packet)?;
        Ok(ControlFlow::Continue(()))
    })?;
    let damage = read?;
    exporting.finish()?;
    match damaged(&damage) {
        Some(places) => bail!("{places}: the vectors leave out the packets there"),
        None => Ok(()),
    }
}

/// Packets into vectors, and those into a file.
struct Exporting<'a> {
    args: &'a Args,
    sources: Sources,
    table: VectorTable<Output>,
}

impl<'a> Exporting<'a> {
    fn new(args: &'a Args, sources: Sources) -> Result<Self> {
        if args.write.as_os_str() != "-" {
            check(&args.write, &sources)?;
        }
        Ok(Self {
            args,
            sources,
            table: VectorTable::new(args.cache.parameters()?).map_err(failed)?,
        })
    }

    /// Finishes the file, unless the input was never opened.
    fn finish(self) -> Result<()> {
        let Some((output, tabled)) = self.table.finish().map_err(failed)? else {
            return Ok(());
        };
        output.finish()?;
        info!(
            "{} of {} written",
            count_of(tabled.vectors, "vector"),
            count_of(tabled.packets, "packet")
        );
        counted::say(&tabled.counted);
        Ok(())
    }
}

impl Take for Exporting<'_> {
    fn begin(&mut self, filter: Option<Filter>) -> Result<()> {
        let output = Output::create(&self.args.write, Content::Binary, &self.sources)?;
        let columns = Columns::of(&self.args.columns);
        let begun = self.table.begin(filter.map(matches), output, columns);
        begun.map_err(failed)
    }

    fn packet(&mut self, link: LinkType, packet: &PacketRef<'_>) -> Result<()> {
        self.table.packet(link, packet).map_err(failed)
    }
}
