//! Names of addresses, as the commands that read logs take and show them.

mod owners;

use std::ops::ControlFlow;

use anyhow::{Context as _, Result};
use strata_networks::{Answers, Names};
use strata_query::{Find, Kept, PacketRows};
use strata_terminal::selection::names::NameFiles;
use strata_terminal::selection::{Logs, damage_counts};
use strata_terminal::text;
use strata_wire::dissect::protocol;
use tracing::{info, warn};

use crate::line::Line;
pub(crate) use owners::Owners;

/// The ports of servers of DNS, and of multicast DNS.
const DNS_PORTS: [u16; 2] = [53, 5353];

/// Where names are found.
#[derive(Debug, clap::Args)]
pub(crate) struct NamesArgs {
    #[command(flatten)]
    files: NameFiles,

    /// Name addresses by the DNS answers in these logs whose payload was kept, including answers
    /// before --from. An address gets the name that was looked up last, and the number of its other
    /// names. A name that --names gives to this address takes precedence. The logs are read twice,
    /// the first time without the filter.
    #[arg(long)]
    dns_names: bool,
}

impl NamesArgs {
    /// Whether anything may be known, with these names of files.
    pub(crate) fn is_any(&self, names: &Names) -> bool {
        !names.is_empty() || self.dns_names
    }

    /// Reads the files.
    ///
    /// # Errors
    ///
    /// If one cannot be read or understood; with its line, if it has lines.
    pub(crate) fn read(&self) -> Result<Names> {
        self.files.read()
    }

    /// Reads the DNS answers of the logs, if they are wanted; those before `find` too.
    ///
    /// # Errors
    ///
    /// If a log cannot be read.
    pub(crate) fn read_answers(
        &self,
        names: &mut Names,
        logs: &Logs,
        find: &Find<'_>,
    ) -> Result<()> {
        if !self.dns_names {
            return Ok(());
        }
        // No filter finds ports within tunnels and after tags.
        let until = Find {
            from_ns: None,
            to_ns: find.to_ns,
            filter: None,
        };
        let answers = names.answers_mut();
        let mut rows: Vec<PacketRows> = (0..logs.len()).map(|_| PacketRows::default()).collect();
        let read = logs.each(&until, &Kept::default(), |log, packet| {
            let headers = rows[log].headers(packet);
            let (is_udp, is_tcp) = headers.key.map_or((false, false), |key| {
                let protocol = key.protocol;
                (protocol == protocol::UDP, protocol == protocol::TCP)
            });
            let is_answer = DNS_PORTS.contains(&headers.endpoints().0.port);
            if !is_answer || !(is_udp || is_tcp) {
                return Ok(ControlFlow::Continue(()));
            }
            let line = Line::of(packet, &headers);
            // Over TCP, the length of a message comes first (RFC 1035 §4.2.2).
            let message = line.payload().get(if is_tcp { 2.. } else { 0.. });
            if let Some(message) = message {
                answers.message(message);
            }
            Ok(ControlFlow::Continue(()))
        });
        let read = read.context("--dns-names")?;
        say(answers, damage_counts(&read.damage));
        Ok(())
    }
}

/// Says how far the names can be trusted.
fn say(answers: &Answers, damage: Option<String>) {
    let hosts = text::count_of(answers.addresses() as u64, "host");
    let messages = text::count_of(answers.messages, "DNS answer");
    match answers.cut {
        0 => info!("names of {hosts} from {messages}"),
        cut => info!(
            "names of {hosts} from {messages}, {cut} of them incomplete: their payload was not kept whole"
        ),
    }
    if answers.beyond > 0 {
        warn!(
            "{} of DNS answers left out: names take at most 128 MiB of memory; with an earlier --to, fewer \
             answers are read",
            text::count_of(answers.beyond, "name")
        );
    }
    if let Some(counts) = damage {
        warn!("--dns-names: {counts} in the log: names may be missing");
    }
}
