//! `strata replay`: send a capture file from an interface.

use std::path::PathBuf;

use anyhow::Result;
use strata_record::{Pace, ReplaySpec};
use strata_role::sandbox::Reach;
use strata_terminal::confined::{SandboxArgs, TO_SEND, to_read};
use strata_terminal::output::refuse;
use strata_terminal::signals::stop_on_signal;
use strata_terminal::{bounded, text};
use strata_wire::grouped;
use tracing::warn;

use super::sending::{self, Method};

/// Arguments of `strata replay`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata replay -i eth1 -r trace.pcap                     # with the timing of the file
  strata replay -i eth1 -r trace.pcap --multiplier 2
  strata replay -i veth0 -r trace.pcap --mbps 9000 --loop 100
  strata replay -i veth0 -r trace.pcap --topspeed --duration 20

Addresses are not changed: replay only into your own network.

A part of the file is in memory at a time: with --loop or --duration at most 3 GB, else 1 GB, and
less where this machine, its control group or ulimit has little memory. A longer file is read part
by part, and nothing is sent while a part is read; one that fits is read once.")]
pub(crate) struct Args {
    /// Send from this interface.
    #[arg(short = 'i', long, visible_alias = "intf1", value_name = "NAME")]
    interface: String,

    /// Send this capture file, in any format that `strata record` reads. Several files are merged
    /// in time order.
    #[arg(short = 'r', long = "read", value_name = "FILE", required = true)]
    read: Vec<PathBuf>,

    /// Replay at this multiple of the recorded speed; 1 by default.
    #[arg(short = 'x', long, value_name = "FACTOR", group = "rate", value_parser = bounded::factor)]
    multiplier: Option<f64>,

    /// Send this many packets per second, as in 500, 20k or 2M.
    #[arg(short = 'p', long, value_name = "N", value_parser = text::number, group = "rate")]
    pps: Option<u64>,

    /// Send this many megabits of frames per second.
    #[arg(short = 'M', long, value_name = "N", group = "rate", value_parser = bounded::factor)]
    mbps: Option<f64>,

    /// Send as fast as possible.
    #[arg(short = 't', long, group = "rate")]
    topspeed: bool,

    /// Send the file this many times; 0 means until Ctrl-C. By default, once.
    #[arg(short = 'l', long = "loop", value_name = "N")]
    times: Option<u64>,

    /// Stop after this many packets.
    #[arg(short = 'L', long, value_name = "N", value_parser = text::number)]
    limit: Option<u64>,

    /// Stop after this many seconds; without --loop, the file is repeated until then.
    #[arg(long, value_name = "SECONDS", value_parser = bounded::seconds)]
    duration: Option<f64>,

    /// Choose how to send. By default, live-frames on a veth interface if that works, else
    /// sendmmsg.
    #[arg(long, value_enum, value_name = "METHOD")]
    method: Option<Method>,

    #[command(flatten)]
    sandbox: SandboxArgs,
}

impl Args {
    fn pace(&self) -> Result<Pace> {
        let positive = |rate: f64, name: &str| match rate > 0.0 && rate.is_finite() {
            true => Ok(rate),
            false => Err(refuse(format!("{name} must be above 0"))),
        };
        #[allow(clippy::cast_precision_loss)]
        Ok(match (self.pps, self.mbps, self.topspeed) {
            (Some(pps), _, _) => Pace::Packets {
                per_second: positive(pps as f64, "--pps")?,
            },
            (_, Some(mbps), _) => Pace::Megabits {
                per_second: positive(mbps, "--mbps")?,
            },
            (_, _, true) => Pace::TopSpeed,
            _ => Pace::File {
                factor: positive(self.multiplier.unwrap_or(1.0), "--multiplier")?,
            },
        })
    }

    fn spec(&self) -> Result<ReplaySpec> {
        Ok(ReplaySpec {
            files: self.read.clone(),
            interface: self.interface.clone(),
            method: self.method.map(Into::into),
            pace: self.pace()?,
            times: match (self.times, self.duration) {
                (Some(0), _) | (None, Some(_)) => None,
                (times, _) => Some(times.unwrap_or(1)),
            },
            limit: self.limit,
            duration: sending::duration(self.duration)?,
            usable_bytes: strata_record::usable_bytes(),
            keep: self.sandbox.is_on().then(|| to_read(&self.read)),
        })
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (spec, stop) = (args.spec()?, stop_on_signal()?);
    // The interface is opened when it is known how long packets are.
    args.sandbox.confine(&Reach {
        read: args.read.clone(),
        interfaces: vec![args.interface.clone()],
        keep: Some(TO_SEND | to_read(&args.read)),
        ..Reach::default()
    })?;
    let outcome = strata_record::replay(&spec, stop)?;
    if outcome.cut > 0 {
        warn!(
            "{} packets of the input are cut short: of these, only the captured bytes are sent",
            grouped(outcome.cut)
        );
    }
    sending::print(&outcome, &args.interface);
    Ok(())
}
