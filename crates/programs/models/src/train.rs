//! `strata train` and `strata compare`: run by the Python package. Their arguments are declared
//! here too, so that `--help` and usage errors work where it is not installed, and unwritable
//! outputs are reported before the work starts.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Result;
use strata_store::Sources;
use strata_terminal::output;
use strata_training::labelled::{LabelArgs, LabelledArgs};

use crate::features;
use crate::scratch::InMemory;

/// Arguments of `strata train`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata train snapshots.parquet -o model.json --report report.html --recall 0.95
  strata train trace.pcap --labels labels.csv -o model.json
  strata train log/ --labels /var/log/suricata/eve.json -o model.json

Prints the labels by class; the recall, precision and F1 of each source, on flows that the forests
have not seen; and a verdict. Exit status: 0 if the model meets its targets and is useful, 3 if not
(the model is written anyway), 1 if no model is written.

Needs the Python package, which `make python` installs.")]
pub(crate) struct TrainArgs {
    /// Train on these files that `strata features -o FILE.parquet` has written; or, with --labels,
    /// on captures and logs.
    #[arg(value_name = "INPUT", required = true)]
    inputs: Vec<PathBuf>,

    #[command(flatten)]
    labels: LabelArgs,

    /// Write the model to this file.
    #[arg(short = 'o', long, value_name = "FILE")]
    output: PathBuf,

    /// Write an HTML page about the classification of unseen flows to this file, and its figures as
    /// JSON next to it.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Name the model.
    #[arg(long, default_value = "strata")]
    name: String,

    /// Set the description of the model.
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,

    /// Use only these features, separated by commas: columns that `strata features` writes.
    #[arg(long, value_name = "LIST")]
    features: Option<String>,

    /// Set the numbers of trees and of leaves per tree, such as 8x64. If given several times, the
    /// best shape is chosen. By default, the better of 8x64 and 16x64.
    #[arg(long, value_name = "TREESxLEAVES", value_parser = shape)]
    shape: Vec<String>,

    /// Limit the depth of a tree, 8 by default. If given several times, the best depth is chosen.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    depth: Vec<u32>,

    /// Drop features that do not improve the classification of unseen flows.
    #[arg(long)]
    choose_features: bool,

    /// Require at least this many packets per leaf.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    min_leaf: u32,

    /// Multiply the weight of attack packets by this factor.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = positive)]
    attack_weight: f64,

    /// Multiply the weight of packets of a class by this factor, as in scan=2; may be given several
    /// times.
    #[arg(long, value_name = "CLASS=N", value_parser = class_weight)]
    class_weight: Vec<String>,

    /// Weight each source (the labels' source column) by the square root of its number of packets,
    /// and give attacks and benign traffic the same total weight.
    #[arg(long)]
    even_sources: bool,

    /// Weight benign packets by their payload, and sources as with --even-sources. Use this if the
    /// cost of keeping a packet is its number of bytes.
    #[arg(long)]
    by_bytes: bool,

    /// Set the cost of a missed attack packet. If it equals --false-alarm-cost, the threshold with
    /// the best F1 is chosen.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = positive)]
    miss_cost: f64,

    /// Set the cost of a false alarm, a benign packet that is called an attack.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = positive)]
    false_alarm_cost: f64,

    /// Detect at least this share of the attack packets of each source, such as 0.95. If a source
    /// has enough flows, the lower bound for unseen flows also meets this share.
    #[arg(long, visible_alias = "recall", value_name = "SHARE", value_parser = share, group = "point")]
    target_recall: Option<f64>,

    /// Keep at most this share of all bytes whole, such as 0.1.
    #[arg(long, value_name = "SHARE", value_parser = share, group = "point")]
    max_kept_whole: Option<f64>,

    /// Give a packet a class only if its score for that class is at least SCORE, such as 0.9; all
    /// other packets get the class 'unknown'.
    #[arg(long, value_name = "SCORE", value_parser = share, group = "point")]
    conservative: Option<f64>,

    /// Exit with status 3 if the precision in cross-validation is below this.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    min_precision: Option<f64>,

    /// Exit with status 3 if the mean F1 of the sources in cross-validation is below this.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    min_f1: Option<f64>,

    /// Set the confidence of the bounds, for unseen flows, on recall and on the share of bytes kept
    /// whole.
    #[arg(long, value_name = "SHARE", value_parser = share, default_value_t = 0.95)]
    confidence: f64,

    /// Set the number of folds of cross-validation.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    folds: u32,

    /// Seed the run, to repeat it exactly.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u32,

    /// Use this many threads.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    jobs: u32,

    /// Show no progress bar.
    #[arg(long)]
    quiet: bool,
}

/// Arguments of `strata compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
FOLDER has a folder for each capture, with trace.pcap and labels.csv. The folders X-train and X-test
belong together. Any other capture with benign and attack packets is split: the first half of each
source's flows is for training, the other half for testing. A capture with attacks only is
classified by the model of the first pair.

Needs the Python package, which `make python` installs.")]
pub(crate) struct CompareArgs {
    /// Read the captures in this folder.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// Write an HTML page to this file, and its figures as JSON next to it.
    #[arg(long, value_name = "FILE")]
    report: PathBuf,

    /// Divide the times between packets by this factor.
    #[arg(long, value_name = "FACTOR", default_value_t = 1000.0, value_parser = positive)]
    time_compression: f64,

    /// Set the window of the flow table, in ms.
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    window_ms: u32,

    /// Compare only these presets, separated by commas: titanlog-paper, titanlog-p4,
    /// netbeacon-like, strata, exact.
    #[arg(long, value_name = "LIST")]
    presets: Option<String>,

    /// Seed the run, to repeat it exactly.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u32,

    /// Use this many threads.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    jobs: u32,
}

pub(crate) fn share(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|share| 0.0 < *share && *share < 1.0);
    number.ok_or_else(|| String::from("write a number between 0 and 1"))
}

fn positive(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    let number = number.filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| String::from("write a number above 0"))
}

fn shape(text: &str) -> Result<String, String> {
    let count = |text: &str| text.parse::<u32>().is_ok_and(|count| count > 0);
    match text.split_once('x') {
        Some((trees, leaves)) if count(trees) && count(leaves) => Ok(text.to_owned()),
        _ => Err(String::from("write trees and leaves, as in 8x64")),
    }
}

fn class_weight(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((class, weight)) if !class.is_empty() && positive(weight).is_ok() => {
            Ok(text.to_owned())
        }
        _ => Err(String::from("write a class and a number, as in scan=2")),
    }
}

/// A command line of the Python package.
pub(crate) struct Line(Vec<OsString>);

impl Line {
    /// A line of this command.
    pub(crate) fn new(command: &str) -> Self {
        Self(vec![command.into()])
    }

    /// Adds the name of a command of that command.
    pub(crate) fn command(mut self, name: &str) -> Self {
        self.0.push(name.into());
        self
    }

    /// Adds an option and its value.
    pub(crate) fn option(&mut self, name: &str, value: impl Into<OsString>) {
        // In one word, since a value may begin with a dash.
        let mut word = OsString::from(name);
        word.push("=");
        word.push(value.into());
        self.0.push(word);
    }

    /// Adds an option and its number.
    pub(crate) fn number(&mut self, name: &str, value: &impl Display) {
        self.option(name, format!("{value}"));
    }

    /// Adds an option without a value.
    pub(crate) fn flag(&mut self, name: &str, is_set: bool) {
        self.0.extend(is_set.then(|| name.into()));
    }

    /// The words, without positional arguments.
    pub(crate) fn words(self) -> Vec<OsString> {
        self.0
    }

    /// Adds positional arguments; nothing may follow.
    pub(crate) fn names(mut self, names: impl IntoIterator<Item = PathBuf>) -> Vec<OsString> {
        self.0.push("--".into());
        self.0.extend(names.into_iter().map(OsString::from));
        self.0
    }
}

/// Fails if a page or its figures cannot be written, or are the same file as another output.
pub(crate) fn check_report(
    report: &Path,
    other: Option<(&str, &Path)>,
    sources: &Sources,
) -> Result<()> {
    let figures = report.with_extension("figures.json");
    let report = [("--report", report), ("the figures of --report", &figures)];
    for (_, file) in report {
        output::check(file, sources)?;
    }
    let outputs: Vec<_> = report.into_iter().chain(other).collect();
    output::distinct(&outputs)
}

/// Whether it is a Parquet file; what cannot be read is taken for one, and then reported.
fn is_snapshots(path: &Path) -> bool {
    let mut magic = [0; 4];
    let has_name = path.extension().is_some_and(|ending| ending == "parquet");
    has_name
        || File::open(path)
            .and_then(|mut file| file.read_exact(&mut magic))
            .is_ok_and(|()| magic == *b"PAR1")
}

/// Trains a model.
pub(crate) fn train(args: &TrainArgs) -> Result<()> {
    let (snapshots, rest): (Vec<_>, Vec<_>) = args
        .inputs
        .iter()
        .cloned()
        .partition(|path| is_snapshots(path));
    let labelled = LabelledArgs::of(&rest, &args.labels);
    let sources = labelled.sources().files(&snapshots);
    output::check(&args.output, &sources)?;
    if let Some(report) = &args.report {
        check_report(report, Some(("-o", &args.output)), &sources)?;
    }
    match (rest.first(), args.labels.is_given()) {
        (Some(first), false) => {
            return Err(output::refuse(format!(
                "{}: not a file of `strata features -o FILE.parquet`: a capture or a log needs --labels",
                first.display()
            )));
        }
        (None, true) => {
            return Err(output::refuse(
                "--labels is for captures and logs: snapshots have their labels already",
            ));
        }
        _ => {}
    }
    let mut line = Line::new("train");
    line.option("--output", &args.output);
    if let Some(report) = &args.report {
        line.option("--report", report);
    }
    line.option("--name", &args.name);
    line.option("--description", &args.description);
    if let Some(features) = &args.features {
        line.option("--features", features);
    }
    for shape in &args.shape {
        line.option("--shape", shape);
    }
    for depth in &args.depth {
        line.number("--depth", depth);
    }
    line.flag("--choose-features", args.choose_features);
    line.number("--min-leaf", &args.min_leaf);
    line.number("--attack-weight", &args.attack_weight);
    for weight in &args.class_weight {
        line.option("--class-weight", weight);
    }
    line.flag("--even-sources", args.even_sources);
    line.flag("--by-bytes", args.by_bytes);
    line.number("--miss-cost", &args.miss_cost);
    line.number("--false-alarm-cost", &args.false_alarm_cost);
    for (name, share) in [
        ("--target-recall", args.target_recall),
        ("--max-kept-whole", args.max_kept_whole),
        ("--conservative", args.conservative),
        ("--min-precision", args.min_precision),
        ("--min-f1", args.min_f1),
    ] {
        if let Some(share) = share {
            line.number(name, &share);
        }
    }
    line.number("--confidence", &args.confidence);
    line.number("--folds", &args.folds);
    line.number("--seed", &args.seed);
    line.number("--jobs", &args.jobs);
    line.flag("--quiet", args.quiet);
    let mut names = snapshots;
    // It lives until the package has ended.
    let made = match rest.first() {
        None => None,
        Some(first) => {
            // A large capture takes long, and would be read for nothing.
            strata_training::python::check()?;
            let stem = first.file_name().unwrap_or(first.as_os_str());
            let made = InMemory::new(format!("{}.parquet", stem.display()))?;
            features::snapshots(labelled, made.output()?)?;
            line.option("--last-name", made.name());
            Some(made)
        }
    };
    names.extend(made.iter().map(InMemory::path));
    strata_training::python::run(line.names(names))
}

/// Compares presets of models.
pub(crate) fn compare(args: &CompareArgs) -> Result<()> {
    check_report(&args.report, None, &Sources::default())?;
    let mut line = Line::new("compare");
    line.option("--report", &args.report);
    line.number("--time-compression", &args.time_compression);
    line.number("--window-ms", &args.window_ms);
    if let Some(presets) = &args.presets {
        line.option("--presets", presets);
    }
    line.number("--seed", &args.seed);
    line.number("--jobs", &args.jobs);
    strata_training::python::run(line.names([args.folder.clone()]))
}
