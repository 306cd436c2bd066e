//! `strata model p4`: a model as entries of the tables of the switch program `titanlog`.

mod tables;
mod target;
mod ternary;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use strata_policy::Mode;
use strata_terminal::output::{refuse, standard};
use strata_wire::Printable;

/// Arguments of `strata model p4`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata model p4 -m model.json -o tables/
  strata model p4 --packet-trees --mode log-partial -o tables/

For each table NAME of the program p4/titanlog.p4 (in Strata's sources), writes a file NAME.txt with
the table's entries in DPDK's format. If the model does not fit the program, it is refused, and no
file is written.")]
pub(crate) struct Args {
    /// Write the tables of the model in this file; by default, of the built-in model.
    #[arg(short = 'm', long = "model", value_name = "FILE")]
    model: Option<PathBuf>,

    /// Write the tables into this directory, created if missing; existing tables are replaced.
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    output: PathBuf,

    /// Set the logging mode, which gives each class its granularity: default, log-all or
    /// log-partial. The program does not sample.
    #[arg(long, value_name = "NAME", default_value = "default")]
    mode: String,

    /// Leave out flow trees: packet trees classify all packets, not only those whose flow has no
    /// bucket.
    #[arg(long)]
    packet_trees: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let model = strata_terminal::model::load(args.model.as_deref())?.model;
    let mode = Mode::by_name(&args.mode, &BTreeMap::new());
    let mode = mode.map_err(|error| refuse(format!("--mode: {error}")))?;
    let granularities = mode.granularities(&model)?;
    let tables = tables::tables(&model, &granularities, args.packet_trees)
        .with_context(|| format!("model {} does not fit the program", Printable(&model.name)))?;
    let dir = args.output.display();
    fs::create_dir_all(&args.output).with_context(|| format!("{dir}: cannot create"))?;
    for table in &tables {
        let path = args.output.join(format!("{}.txt", table.name));
        fs::write(&path, table.text())
            .with_context(|| format!("{}: cannot write", path.display()))?;
    }
    let mut out = standard();
    for table in tables.iter().filter(|table| !table.entries.is_empty()) {
        let (entries, size) = (table.entries.len(), table.size);
        writeln!(out, "{:<24} {entries:>4} of {size} entries", table.name)?;
    }
    Ok(())
}
