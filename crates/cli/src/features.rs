//! `strata features`: what the classifier sees, packet by packet.

use std::fs::File;
use std::io::{BufWriter, Write, stdout};
use std::path::PathBuf;

use anyhow::{Context, Result};
use strata_capture::{Input, InputOptions, Interface, Meta, Next};
use strata_pipeline::FlowFinder;
use strata_sketch::{Arithmetic, BITS_DEFAULT, Clock, Feature, Sketch};
use strata_wire::TunnelKey;

/// Arguments of `strata features`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Capture file to read; as for `strata record`.
    #[arg(short = 'r', long = "read", value_name = "FILE", required = true)]
    read: Vec<PathBuf>,

    /// CSV file to write; - is standard output.
    #[arg(short = 'o', long = "output", value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Length of the sketches' window in ms; it belongs to the model that is
    /// trained on these features. By default that of the built-in model.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    window_ms: Option<u64>,

    /// Key of flow fingerprints.
    #[arg(long, value_name = "N", default_value_t = 0)]
    hash_seed: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut input = Input::open(&args.read, &InputOptions::default())?;
    let mut output: Box<dyn Write> = if args.output.as_os_str() == "-" {
        Box::new(BufWriter::new(stdout().lock()))
    } else {
        let named = || format!("{}: cannot write", args.output.display());
        Box::new(BufWriter::new(
            File::create(&args.output).with_context(named)?,
        ))
    };
    let clock = match args.window_ms {
        Some(ms) => Clock::new(ms.saturating_mul(1_000_000)),
        None => crate::model::load(None)?.model.clock(),
    };
    let mut sketch = Sketch::new(BITS_DEFAULT, clock, Arithmetic::Exact);
    let mut flows = FlowFinder::new([args.hash_seed, 0], TunnelKey::Inner);
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut frame = 0_u64;

    let names: Vec<&str> = Feature::ALL.iter().map(|f| f.name()).collect();
    writeln!(output, "frame,ts_ns,flow,has_bucket,{}", names.join(","))?;
    loop {
        match input.advance()? {
            Next::End => break,
            Next::Meta(Meta::Interface { interface, .. }) => interfaces.push(interface),
            Next::Meta(_) => {}
            Next::Packets => {
                for packet in input.batch().iter() {
                    frame += 1;
                    let link = interfaces[usize::from(packet.interface)].link;
                    let (_, Some(facts)) = flows.find(link, &packet) else {
                        continue;
                    };
                    let flow = sketch.insert(&facts).map(|bucket| bucket.stats());
                    let has_bucket = u8::from(flow.is_some());
                    let flow = flow.unwrap_or_default();
                    let fingerprint = facts.fingerprint;
                    write!(
                        output,
                        "{frame},{},{fingerprint},{has_bucket}",
                        packet.ts_ns
                    )?;
                    for feature in Feature::ALL {
                        let value = feature.value(&facts, &flow, clock, None);
                        write!(output, ",{}", feature.decode(value, clock))?;
                    }
                    writeln!(output)?;
                }
            }
        }
    }
    output.flush()?;
    for warning in input.take_warnings() {
        eprintln!("strata: warning: {warning}");
    }
    Ok(())
}
