//! The largest of what a running recording captures, as a query for it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use strata_terminal::output::refuse;

use super::{Args, By, Of};

/// Options that only logs have.
const OF_LOGS: [&str; 5] = ["from", "to", "names", "mmdb", "dns_names"];

/// Options for a running recording.
#[derive(Debug, clap::Args)]
pub(super) struct LiveArgs {
    /// Count what the recording with this socket (`strata record --socket`) captures from now on,
    /// until the recording ends or Ctrl-C. On a terminal, the table so far is shown every second.
    /// Flows and pairs are counted by direction, and bytes are those on the wire. A filter, times and
    /// names cannot be given.
    #[arg(long, value_name = "PATH", conflicts_with_all = OF_LOGS)]
    pub(super) socket: Option<PathBuf>,

    /// Like --socket, but for the only running recording.
    #[arg(long, conflicts_with = "socket", conflicts_with_all = OF_LOGS)]
    pub(super) running: bool,
}

/// What is asked of a running recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTop<'a> {
    /// Its socket; `None` for the only running one.
    pub socket: Option<&'a Path>,
    /// A query in Marple's language.
    pub query: String,
    /// The column of its answer by which the largest come first.
    pub sort: &'static str,
    /// Rows to show.
    pub number: u32,
    /// Whether the answer is JSON.
    pub is_json: bool,
}

impl Args {
    /// What is asked of a running recording; `None` if a log is read.
    ///
    /// # Errors
    ///
    /// If a recording does not know what is asked for.
    pub fn live(&self) -> Result<Option<LiveTop<'_>>> {
        let socket = self.live.socket.as_deref();
        if socket.is_none() && !self.live.running {
            return Ok(None);
        }
        if self.log.is_some() {
            return Err(refuse(
                "--socket and --running count what a recording captures, without a log or a filter",
            ));
        }
        let fields = match self.by {
            By::Flow => "srcip, dstip, srcport, dstport, proto",
            By::Source => "srcip",
            By::Destination => "dstip",
            By::Pair => "srcip, dstip",
            By::Protocol => "proto",
            By::Host
            | By::Port
            | By::Network
            | By::Country
            | By::As
            | By::Process
            | By::Class
            | By::Reason
            | By::Log => {
                return Err(refuse(format!(
                    "--by {} needs a log: a running recording counts by flow, source, destination, \
                     pair or protocol",
                    self.by.name()
                )));
            }
        };
        let sort = match self.of {
            Of::Packets => "packets",
            Of::Wire => "wire_bytes",
            Of::Kept => {
                return Err(refuse(
                    "--of kept needs a log: of a running recording, packets and wire are known",
                ));
            }
        };
        Ok(Some(LiveTop {
            socket,
            query: format!(
                "def sums([packets, wire_bytes], [pkt_len]):\n    packets = packets + 1\n    \
                 wire_bytes = wire_bytes + pkt_len\n\nresult = groupby(T, [{fields}], sums);\n"
            ),
            sort,
            number: self.number,
            is_json: self.json,
        }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn live(words: &[&str]) -> Result<Option<(String, &'static str)>> {
        let line = Line::try_parse_from([&["top"], words].concat())?;
        let live = line.args.live()?;
        Ok(live.map(|live| (live.query, live.sort)))
    }

    #[test]
    fn a_recording_counts_what_it_knows() {
        assert_eq!(live(&["log"]).unwrap(), None);
        let by = ["--socket", "s", "--by", "pair", "--of", "wire"];
        let (query, sort) = live(&by).unwrap().unwrap();
        assert!(
            query.ends_with("groupby(T, [srcip, dstip], sums);\n"),
            "{query}"
        );
        assert_eq!(sort, "wire_bytes");
        for (refused, what) in [
            (
                &["--running", "--by", "reason"][..],
                "--by reason needs a log",
            ),
            (&["--running", "--of", "kept"], "--of kept needs a log"),
            (&["--running", "log"], "without a log"),
        ] {
            let error = live(refused).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        assert!(live(&[]).is_err(), "neither a log nor a recording");
    }
}
