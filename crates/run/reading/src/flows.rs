//! Flow records on the command line: when they end, and the collector that they go to.

use std::net::SocketAddr;

use anyhow::Result;
use clap::ValueEnum;
use strata_archive::Timeouts;
use strata_flow_export::{FlowsSpec, usual_port};
use strata_query::FlowProtocol;
use strata_terminal::address::address;
use strata_terminal::output::refuse;
use strata_terminal::text;

/// When a flow record ends, though its flow goes on.
#[derive(Debug, clap::Args)]
pub(crate) struct TimeoutArgs {
    /// End the record of a flow that lasts longer than TIME, a number with s, min, h or d; later
    /// packets go to the next record. The defaults of this option and of --idle-timeout are those
    /// of nfpcapd (nfdump). [default: 300s]
    #[arg(long, value_name = "TIME")]
    active_timeout: Option<String>,

    /// End the record of a flow that has had no packet for longer than TIME. [default: 60s]
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<String>,
}

impl TimeoutArgs {
    pub(crate) fn any(&self) -> bool {
        self.active_timeout.is_some() || self.idle_timeout.is_some()
    }

    pub(crate) fn timeouts(&self) -> Result<Timeouts> {
        let usual = Timeouts::default();
        let ns = |name: &str, text: &Option<String>, usual: u64| match text {
            None => Ok(usual),
            Some(text) => match text::duration_ns(text) {
                Ok(0) => Err(refuse(format!("{name} must be above 0, as in 60s"))),
                Ok(ns) => Ok(ns),
                Err(problem) => Err(refuse(format!("{name}: {problem}"))),
            },
        };
        Ok(Timeouts {
            active_ns: ns("--active-timeout", &self.active_timeout, usual.active_ns)?,
            idle_ns: ns("--idle-timeout", &self.idle_timeout, usual.idle_ns)?,
        })
    }
}

/// Flows for a collector while packets are recorded.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Flows")]
pub struct FlowArgs {
    /// Send the records of flows, as the flows end, over UDP to this collector (nfcapd, pmacct,
    /// Akvorado and others). The records cover all captured packets. `strata record` without -o
    /// only exports flows. The recording never waits for the collector: packets that arrive faster
    /// than they can be assigned to flows are missing from the flow records. These packets, and
    /// datagrams that are not delivered, are counted.
    #[arg(long, value_name = "HOST[:PORT]")]
    flows_to: Option<String>,

    /// Send flows as IPFIX (usual port 4739) or as NetFlow 9 (usual port 2055).
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = FlowFormat::Ipfix,
        requires = "flows_to")]
    flow_format: FlowFormat,

    #[command(flatten)]
    timeouts: TimeoutArgs,
}

impl FlowArgs {
    /// Where flows go, if anywhere.
    pub fn spec(&self) -> Result<Option<FlowsSpec>> {
        let timeouts = self.timeouts.timeouts()?;
        match &self.flows_to {
            None if self.timeouts.any() => Err(refuse(
                "--active-timeout and --idle-timeout apply only with --flows-to",
            )),
            None => Ok(None),
            Some(to) => Ok(Some(FlowsSpec {
                to: collector("--flows-to", to, self.flow_format.protocol())?,
                protocol: self.flow_format.protocol(),
                timeouts,
            })),
        }
    }
}

/// The protocol of flows, as `export -F` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FlowFormat {
    Ipfix,
    Netflow9,
}

impl FlowFormat {
    fn protocol(self) -> FlowProtocol {
        match self {
            Self::Ipfix => FlowProtocol::Ipfix,
            Self::Netflow9 => FlowProtocol::Netflow9,
        }
    }
}

/// The address of a collector: `HOST`, `HOST:PORT` or `udp://HOST:PORT`.
pub(crate) fn collector(option: &str, to: &str, protocol: FlowProtocol) -> Result<SocketAddr> {
    let name = to.strip_prefix("udp://").unwrap_or(to);
    let found = address(option, name, usual_port(protocol))
        .map_err(|problem| refuse(format!("{problem:#}")))?;
    match found.port() {
        0 => Err(refuse(format!(
            "{option} {to}: no collector listens on port 0"
        ))),
        _ => Ok(found),
    }
}
