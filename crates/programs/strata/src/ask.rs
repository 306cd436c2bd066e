//! `strata ask`: questions in Marple's language, of a capture, a log, an interface, vectors or a running
//! recording.
//!
//! ```text
//! captured logged live            where packets come from
//! vectors attached                where vectors of them come from
//! installed                       queries that run in a recording
//! largest                         `strata top` of a running recording
//! asking                          packets into vectors, vectors into queries
//! questions                       which queries; what they need
//! answer                          tables, files
//! ```

mod answer;
mod asking;
mod attached;
mod captured;
mod installed;
mod largest;
mod live;
mod logged;
mod questions;
mod vectors;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use strata_control::queries::QueryReport;
use strata_gpv::marple::{Limits, SHIPPED};
use strata_store::Sources;
use strata_terminal::confined::SandboxArgs;
use strata_terminal::key::KeyArgs;
use strata_terminal::listing::{ColumnForm, Reader, listing};
use strata_terminal::output::{refuse, standard};
use strata_terminal::selection::names::NameFiles;
use strata_terminal::selection::vectors::FrameForm;
use strata_terminal::text;

use answer::Answers;
use asking::Asking;
pub(crate) use largest::largest;
use questions::Questions;

/// Arguments of `strata ask`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "\
strata ask -r FILE QUERY [FILTER]
       strata ask -i IF QUERY [FILTER]
       strata ask LOG QUERY [FILTER]
       strata ask --vectors FROM QUERY
       strata ask --running QUERY
       strata ask --running --install NAME QUERY
       strata ask --running --installed [NAME]
       strata ask --list [NAME]",
    after_help = "\
QUERY is the name of a query that comes with Strata, or a query in Marple's language. FILTER is a
tcpdump filter that selects the packets on which the query runs.

Examples:
  strata ask --list
  strata ask -r trace.pcap packet-counts-per-source --sort -counter --top 10
  strata ask -r trace.pcap flowlet-size-histogram --param gap=2ms 'tcp port 443'
  strata ask -r trace.pcap 'R = filter(T, proto == TCP and pkt_len > 1000);' -w large.parquet
  strata ask -r trace.pcap -q tcp-non-monotonic -q tcp-timeouts -F json | jq .
  strata ask log/ tcp-out-of-sequence --from 13:05 --to 13:20
  strata ask -i eth0 -f question.marple
  strata ask --vectors vectors.gpv ewma-latencies
  strata ask --vectors stream://streams/vectors tcp-retransmissions --to-stream streams/answers
  strata ask --running concurrent-connections --sort -epoch --top 20
  strata ask --running --install timeouts tcp-timeouts --param low=100ms
  strata ask --running --installed timeouts --sort -count --top 20

Exit status: 0 if the answer is complete; 1 if it is not, or the input is damaged (details are on
standard error); 2 if the command line or the query is invalid."
)]
pub(crate) struct Args {
    /// Run the query on this capture file, in any format that `strata record` reads; - is standard
    /// input. Several files are merged in time order.
    #[arg(short = 'r', long = "read", value_name = "FILE", group = "source")]
    read: Vec<PathBuf>,

    /// Run the query on packets of this interface, or of several, separated by commas, until
    /// Ctrl-C; `any` means all. On a terminal, the answer so far is shown every second.
    #[arg(
        short = 'i',
        long = "interface",
        value_name = "NAME",
        value_delimiter = ',',
        group = "source"
    )]
    interfaces: Vec<String>,

    /// Run the query on grouped packet vectors from this file or ring buffer of `strata gpv run` (-
    /// is standard input), from all files of this directory, or, with stream://DIR/NAME, from this
    /// stream; or, with udp://ADDRESS:PORT, on vectors that switches send to this address, until
    /// Ctrl-C. In the query, the field switch is the number of the exporter.
    #[arg(long, value_name = "FROM", group = "source")]
    vectors: Option<String>,

    /// Continue with vectors that are written to the directory or stream later, until Ctrl-C.
    #[arg(long, requires = "vectors")]
    follow: bool,

    /// Read FROM as a capture file of the frames in which the switch of the *Flow paper exports
    /// vectors (EtherTypes 0x081a and 0x081b).
    #[arg(long, value_name = "FORM", value_enum, requires = "vectors")]
    frames: Option<FrameForm>,

    /// Accept vectors only from this network; may be given several times. Required unless the
    /// address is a loopback address.
    #[arg(long, value_name = "CIDR", requires = "vectors")]
    allow: Vec<String>,

    /// Run the query on the packets that the recording with this socket (`strata record --socket`)
    /// captures from now on, until the recording ends or Ctrl-C. The recording does not wait for
    /// the query: packets that the query does not read in time are missing from its answer only,
    /// and counted.
    #[arg(long, value_name = "PATH", group = "source")]
    socket: Option<PathBuf>,

    /// Like --socket, but for the only running recording.
    #[arg(long, group = "source")]
    running: bool,

    /// Install the query in the running recording, under this name: it runs on all packets from now
    /// on, with or without a connected client, until it is removed or the recording ends. A
    /// recording runs at most 16 queries, each with at most 100,000 groups, 100,000 rows and 16 MiB
    /// of memory.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["read", "interfaces", "vectors", "write", "format", "sort", "top", "count", "skip_incomplete"])]
    install: Option<String>,

    /// Report the groups of the installed query (flows or hosts) to the telemetry collector of the
    /// recording (`record --report-to`) every second: the latest value of each group (`value=N`),
    /// the increase of this value (`add=N`), or each new group as an entry of list N (`list=N`).
    /// For value and add, N is part of the key: `strata telemetry get STORE node N FLOW`. The value
    /// is taken from the last column, or from the column after a colon: `value=N:COLUMN`.
    #[arg(long, value_name = "HOW", requires = "install")]
    report_as: Option<QueryReport>,

    /// Show the answer so far of this installed query; without a NAME, list the queries installed
    /// in the running recording.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", group = "lists",
          conflicts_with_all = ["read", "interfaces", "vectors", "install", "queries", "files", "words"])]
    installed: Option<String>,

    /// Remove this installed query and its answer from the running recording.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["read", "interfaces", "vectors", "install", "installed", "queries", "files", "words"])]
    remove: Option<String>,

    /// A log, unless -r, -i, --socket or --running is given; a query, unless -q or -f is given;
    /// then a filter.
    #[arg(value_name = "LOG|QUERY|FILTER")]
    words: Vec<String>,

    /// Run this query, given by its name or as text. May be given several times: all queries run on
    /// the same packets in one pass.
    #[arg(short = 'q', long = "query", value_name = "QUERY")]
    queries: Vec<String>,

    /// Run the query in this file; may be given several times.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Set a parameter of the query ($NAME in its text) to a number (optionally with ns, us, ms or
    /// s) or to an address.
    #[arg(long = "param", value_name = "NAME=VALUE")]
    params: Vec<String>,

    /// Write the answer to this file, replacing it; - is standard output. With several queries, {}
    /// in the file name stands for the name of each query.
    #[arg(short = 'w', long = "write", value_name = "FILE", default_value = "-")]
    write: PathBuf,

    /// Append the rows of the answer to this stream (`strata stream create` makes one) instead of
    /// writing a file: each row is a record with a JSON object.
    #[arg(long, value_name = "DIR/NAME", conflicts_with_all = ["write", "format", "json", "install", "list"])]
    to_stream: Option<String>,

    /// Set the format of the answer. By default, the file's name decides: csv for .csv, json for
    /// .json, parquet for .parquet, arrow for .arrow; table for all other names.
    #[arg(short = 'F', long, value_enum)]
    format: Option<answer::Format>,

    /// Sort the answer by this column; with a minus sign before its name, largest first. By
    /// default, groups are in order of their keys, and packets in order of time.
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    sort: Option<String>,

    /// Show only this many rows of the answer, from its start.
    #[arg(long, value_name = "N", value_parser = text::number)]
    top: Option<u64>,

    /// Stop after this many packets.
    #[arg(short = 'c', long = "count", value_name = "PACKETS", value_parser = text::number)]
    count: Option<u64>,

    /// Skip and count packets without the bytes that a query needs, if these were not captured or
    /// not kept. By default, the first such packet ends the query.
    #[arg(long)]
    skip_incomplete: bool,

    #[command(flatten)]
    sandbox: SandboxArgs,

    /// List the queries that come with Strata; with a NAME, show its text.
    #[arg(long, group = "lists")]
    list: bool,

    /// Print JSON: the answer, as with --format json, or the list (--list, --installed).
    #[arg(long, conflicts_with = "format")]
    json: bool,

    #[command(flatten)]
    names: NameFiles,

    #[command(flatten)]
    of_logs: OfLogs,

    #[command(flatten)]
    bounds: Bounds,
}

/// What only a log has.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Logs")]
struct OfLogs {
    /// Select packets from this time on: 13:05, 2026-01-31T13:05 (both local time),
    /// 2026-01-31T13:05:00Z, or seconds since 1970. A time without a date is on the day of the
    /// log's first packet.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,

    /// Select packets before this time, in the format of --from.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,

    #[command(flatten)]
    key: KeyArgs,
}

/// How much each query may use.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits of each query")]
struct Bounds {
    /// Keep at most this many groups of each groupby. Packets of further groups are counted, but
    /// missing from the answer. [default: 100k]
    #[arg(long, value_name = "N", value_parser = text::number)]
    groups_max: Option<u64>,

    /// Keep at most this many rows, if the answer has a row per packet. Further rows are counted,
    /// but missing from the answer. [default: 1M; for installed queries 100k]
    #[arg(long, value_name = "N", value_parser = text::number)]
    rows_max: Option<u64>,

    /// Use at most this much memory for groups and rows; large ones may reach this limit first.
    /// [default: 256MiB; for installed queries 16MiB]
    #[arg(long, value_name = "BYTES", value_parser = text::bytes)]
    memory_max: Option<u64>,

    /// Refuse a query that takes more than this many instructions per packet; at most 4096.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u16).range(1..=4096))]
    instructions_max: u16,
}

impl Bounds {
    fn limits(&self) -> Result<Limits> {
        let fitting = |number: u64, option| {
            u32::try_from(number)
                .map_err(|_| refuse(format!("{option} {number}: at most 4294967295 are allowed")))
        };
        let mut limits = Limits::default();
        if let Some(groups_max) = self.groups_max {
            limits.groups_max = fitting(groups_max, "--groups-max")?;
        }
        if let Some(rows_max) = self.rows_max {
            limits.rows_max = fitting(rows_max, "--rows-max")?;
        }
        if let Some(bytes_max) = self.memory_max {
            limits.bytes_max = bytes_max;
        }
        Ok(limits)
    }
}

impl Args {
    /// Whether packets come until somebody stops them.
    pub(crate) fn is_live(&self) -> bool {
        let is_udp = |from: &String| from.starts_with("udp://");
        !self.interfaces.is_empty() || self.follow || self.vectors.as_ref().is_some_and(is_udp)
    }

    /// Whether a running recording answers.
    fn is_attached(&self) -> bool {
        self.socket.is_some() || self.running || self.install.is_some()
    }

    /// The log, the queries and the filter among the words.
    fn split(&self) -> Result<Split<'_>> {
        let mut words = self.words.as_slice();
        let has_source = !self.read.is_empty()
            || !self.interfaces.is_empty()
            || self.vectors.is_some()
            || self.is_attached();
        let log = match (has_source, words) {
            (true, _) => None,
            (false, [log, rest @ ..]) => {
                words = rest;
                Some(log.as_str())
            }
            (false, []) => {
                return Err(refuse(
                    "no input and no query: name a log, -r FILE, -i INTERFACE or --running, and a \
                     query; `strata ask --list` lists queries, --help has examples",
                ));
            }
        };
        let mut query = None;
        if self.queries.is_empty() && self.files.is_empty() {
            let [first, rest @ ..] = words else {
                return Err(refuse(match log {
                    Some(log) if questions::is_query(log) => format!(
                        "'{log}' is a query without input: name a log before it, or give -r FILE, \
                         -i INTERFACE or --running"
                    ),
                    _ => "no query: `strata ask --list` lists those that come with Strata, --help \
                          has examples"
                        .to_owned(),
                }));
            };
            query = Some(first.as_str());
            words = rest;
        }
        Ok(Split {
            log,
            query,
            filter: words,
        })
    }
}

/// What the words of a command line are.
struct Split<'a> {
    log: Option<&'a str>,
    query: Option<&'a str>,
    filter: &'a [String],
}

/// Refuses files of names where no filter could use them.
fn check_names(args: &Args) -> Result<()> {
    let takes_no_filter = match args {
        _ if args.is_attached() => "a running recording",
        Args {
            vectors: Some(_), ..
        } => "--vectors",
        Args { list: true, .. } => "--list",
        Args {
            installed: Some(_), ..
        } => "--installed",
        Args {
            remove: Some(_), ..
        } => "--remove",
        _ => return Ok(()),
    };
    let Some(option) = args.names.option() else {
        return Ok(());
    };
    Err(refuse(format!(
        "{option}: names are for filters, and {takes_no_filter} takes no filter: query a log, a \
         capture file (-r) or an \
         interface (-i), or write the addresses into the query"
    )))
}

pub(crate) fn run(args: &Args) -> Result<()> {
    check_names(args)?;
    if args.list {
        return list(args);
    }
    if let Some(name) = &args.remove {
        return installed::remove(args, name);
    }
    match args.installed.as_deref() {
        Some("") => return installed::list(args),
        Some(name) => return installed::answer(args, name),
        None => {}
    }
    args.of_logs.key.look_into_tunnels()?;
    let split = args.split()?;
    if let (true, None, Some(word)) = (args.is_attached(), &args.install, split.query)
        && !questions::is_query(word)
    {
        return installed::answer_of_word(args, word);
    }
    if split.log.is_none() && (args.of_logs.from.is_some() || args.of_logs.to.is_some()) {
        return Err(refuse("--from and --to apply only to a log"));
    }
    let questions = Questions::new(args, split.query)?;
    if let Some(name) = &args.install {
        return match split.filter.is_empty() {
            true => installed::install(args, name, questions),
            false => Err(refuse(attached::NO_FILTER)),
        };
    }
    let filter = match args.is_attached() || args.vectors.is_some() {
        true => None,
        false => text::filter_with(split.filter, &args.names.read()?)?,
    };
    let mut asking = Asking::new(questions.compiled()?, args.skip_incomplete, args.count)?;
    let mut answers = Answers::new(args, asking.shapes())?;
    let asked = match split.log {
        Some(log) => logged::ask(args, log, filter.as_ref(), &mut asking, &mut answers),
        None if args.is_attached() => attached::ask(args, split.filter, &mut asking, &mut answers),
        None if !args.interfaces.is_empty() => live::ask(args, filter, &mut asking, &mut answers),
        None => match &args.vectors {
            Some(from) => vectors::ask(args, from, split.filter, &mut asking, &mut answers),
            None => captured::ask(args, filter, &mut asking, &mut answers),
        },
    };
    if let Err(error) = &asked
        && (error.is::<asking::Incomplete>() || !answers.is_open())
    {
        return asked;
    }
    // A damaged input is answered up to the damage.
    asking.flush();
    answers.give(&mut asking)?;
    // The counts are printed in any case.
    let reported = asking.report();
    asked.and(reported)
}

/// The queries that come with Strata.
fn list(args: &Args) -> Result<()> {
    let unknown = args
        .words
        .iter()
        .find(|word| questions::named(word).is_none());
    if let Some(word) = unknown {
        return Err(questions::unknown(word));
    }
    let wanted = |name: &str| args.words.is_empty() || args.words.iter().any(|word| word == name);
    let shipped = SHIPPED.iter().filter(|shipped| wanted(shipped.name));
    let mut out = standard();
    if args.json {
        let shipped = shipped.map(|shipped| {
            let parameters = shipped
                .parameters
                .iter()
                .map(|&(name, usual)| serde_json::json!({ "name": name, "default": usual }));
            serde_json::json!({
                "name": shipped.name,
                "about": shipped.about,
                "parameters": parameters.collect::<Vec<_>>(),
                "text": shipped.text,
            })
        });
        let all: Vec<_> = shipped.collect();
        return Ok(writeln!(out, "{:#}", serde_json::Value::from(all))?);
    }
    let parameters = |shipped: &strata_gpv::marple::Shipped| {
        let all = shipped.parameters.iter();
        let all: Vec<String> = all.map(|(name, usual)| format!("{name}={usual}")).collect();
        all.join(" ")
    };
    if !args.words.is_empty() {
        for shipped in shipped {
            writeln!(out, "# {}: {}", shipped.name, shipped.about)?;
            if !shipped.parameters.is_empty() {
                writeln!(out, "# parameters: {}", parameters(shipped))?;
            }
            writeln!(out, "{}", shipped.text)?;
        }
        return Ok(());
    }
    let head = ["query", "parameters", "answer"].map(str::to_owned);
    let rows = shipped.map(|shipped| {
        [
            shipped.name.to_owned(),
            parameters(shipped),
            shipped.about.to_owned(),
        ]
    });
    let columns = [
        ColumnForm::words(0),
        ColumnForm::words(0).apart(),
        ColumnForm::words(0).apart(),
    ];
    let page = listing(
        Reader::of_stdout(),
        columns,
        std::iter::once(head).chain(rows),
    );
    Ok(write!(out, "{page}")?)
}

/// The files that asking reads, which an answer must not replace.
fn sources(args: &Args) -> Result<Sources> {
    let names = args.names.files()?;
    let sources = Sources::default().files(&args.read).files(&args.files);
    Ok(sources.files(&names))
}
