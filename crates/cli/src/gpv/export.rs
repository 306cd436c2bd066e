//! `strata gpv export`: the vectors of a capture or a log, at rest.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use strata_capture::PacketRef;
use strata_filter::Filter;
use strata_gpv::{Cache, Column, Full, Packet, Vector};
use strata_query::Find;
use strata_store::Sources;
use strata_wire::LinkType;
use tracing::info;

use super::packets::Features;
use super::rows::{About, Rows};
use super::{CAPTURED, CAPTURED_NAMES, CacheArgs};
use crate::key::KeyArgs;
use crate::output::{Content, Output, check, refuse};
use crate::packets::{Take, captured, damaged, logged, open_log};
use crate::text::{self, count_of};

/// Packets that go through the cache together.
const BATCH: usize = 256;

/// Arguments of `strata gpv export`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "\
strata gpv export -r FILE -w FILE [FILTER]
       strata gpv export LOG -w FILE [FILTER]",
    after_help = "\
A row is a vector: a flow key, and the list `tuples` with a struct for each packet.

Examples:
  strata gpv export -r trace.pcap -w vectors.parquet 'tcp port 443'
  duckdb -c \"SELECT src, dst, unnest(tuples, recursive := true) FROM 'vectors.parquet'\""
)]
pub(super) struct Args {
    /// Read this capture file; - is standard input. Several are merged in time order.
    #[arg(short = 'r', long = "read", value_name = "FILE")]
    read: Vec<PathBuf>,

    /// LOG, unless -r is given; FILTER, a tcpdump filter.
    #[arg(value_name = "LOG|FILTER")]
    words: Vec<String>,

    /// Write to this file, replacing it; - is standard output.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: PathBuf,

    /// Write these features of packets, in addition to times.
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
            let mut grouping = Grouping::new(args, sources)?;
            let never = std::sync::Arc::default();
            let read = captured(&args.read, filter, &never, &mut grouping);
            // What was read of a damaged capture is written.
            let ended = grouping.finish();
            read.and(ended)
        }
        (true, [log, words @ ..]) => of_log(args, log, text::filter(words)?.as_ref()),
        (true, []) => Err(refuse("nothing to read: name a log, or -r FILE")),
    }
}

fn of_log(args: &Args, dir: &str, filter: Option<&Filter>) -> Result<()> {
    let dir = Path::new(dir);
    let log = open_log(&args.key, dir, "reads")?;
    let mut grouping = Grouping::new(args, args.key.sources(dir, &log))?;
    grouping.begin(None)?;
    let find = Find {
        filter,
        ..Find::default()
    };
    let read = logged(&log, &find, |logged, packet| {
        grouping.packet(logged.link, packet)?;
        Ok(ControlFlow::Continue(()))
    })?;
    let damage = read?;
    grouping.finish()?;
    match damaged(&damage) {
        Some(places) => bail!("{places}: the vectors are of the rest"),
        None => Ok(()),
    }
}

/// Packets into vectors, and vectors into rows.
struct Grouping<'a> {
    args: &'a Args,
    sources: Sources,
    features: Features,
    cache: Cache<Full>,
    batch: Vec<Packet>,
    rows: Option<Rows<Output>>,
}

impl<'a> Grouping<'a> {
    fn new(args: &'a Args, sources: Sources) -> Result<Self> {
        if args.write.as_os_str() != "-" {
            check(&args.write, &sources)?;
        }
        Ok(Self {
            args,
            sources,
            features: Features::new()?,
            cache: Cache::new(args.cache.parameters()?, super::seed()?)
                .map_err(|error| refuse(error.to_string()))?,
            batch: Vec::with_capacity(BATCH),
            rows: None,
        })
    }

    fn push(&mut self) -> Result<()> {
        let Some(rows) = &mut self.rows else {
            return Ok(());
        };
        let mut out = |vector: &Vector<'_, Full>| push(rows, vector);
        self.cache.push(&self.batch, &mut out);
        self.batch.clear();
        rows.write()
    }

    fn finish(mut self) -> Result<()> {
        self.push()?;
        // Without rows the input was never opened.
        let Some(mut rows) = self.rows else {
            return Ok(());
        };
        self.cache
            .flush(&mut |vector: &Vector<'_, Full>| push(&mut rows, vector));
        let written = rows.written;
        rows.finish()?.finish()?;
        info!(
            "{} of {} written",
            count_of(written, "vector"),
            count_of(self.cache.counters().packets, "packet")
        );
        self.features.counted.say();
        Ok(())
    }
}

fn push(rows: &mut Rows<Output>, vector: &Vector<'_, Full>) {
    let about = About {
        exporter: None,
        reason: Some(vector.reason),
        saturated: Some(vector.saturated),
        known: CAPTURED,
    };
    rows.push(vector, about);
}

impl Take for Grouping<'_> {
    fn begin(&mut self, filter: Option<Filter>) -> Result<()> {
        self.features.filter(filter);
        let output = Output::create(&self.args.write, Content::Binary, &self.sources)?;
        let columns = super::with_time(&self.args.columns);
        self.rows = Some(Rows::new(output, columns)?);
        Ok(())
    }

    fn packet(&mut self, link: LinkType, packet: &PacketRef<'_>) -> Result<()> {
        if let Some(features) = self.features.of(link, packet) {
            self.batch.push(features);
            if self.batch.len() >= BATCH {
                self.push()?;
            }
        }
        Ok(())
    }
}
