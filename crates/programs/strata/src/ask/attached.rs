//! Asking of a running recording: it sends vectors of what it records, through its socket.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, anyhow};
use strata_control::client::{Client, VectorsNext};
use strata_gpv::agent::{Sequencer, SequencerOptions};
use strata_gpv::{Column, Columns};
use strata_terminal::output::refuse;
use strata_terminal::signals::stop_on_signal;
use strata_terminal::text::count_of;
use tracing::{info, warn};

use super::Args;
use super::answer::Answers;
use super::asking::Asking;
use super::questions::Lack;

const NO_QUEUE: &str = "a recording does not know queue lengths";

pub(super) const LACKS: [Lack; 2] = [
    Lack {
        column: Column::QueueDepth,
        why: NO_QUEUE,
    },
    Lack {
        column: Column::HighQueue,
        why: NO_QUEUE,
    },
];

/// Why there is no filter.
pub(super) const NO_FILTER: &str = "a recording sends packet features, which a tcpdump filter cannot test: write the \
     condition into the query, as in filter(T, dstport == 443)";

/// How long to wait for vectors before the answer so far is shown, and signals are looked at.
const WAIT: Duration = Duration::from_millis(100);

pub(super) fn ask(
    args: &Args,
    filter: &[String],
    asking: &mut Asking,
    answers: &mut Answers,
) -> Result<()> {
    if !filter.is_empty() {
        return Err(refuse(NO_FILTER));
    }
    asking.check(&LACKS)?;
    let stop = stop_on_signal()?;
    let time = Columns::of(&[Column::Time]);
    let columns = asking.queries.iter().fold(time, |all, asked| {
        Columns(all.0 | asked.query.program().columns().0)
    });
    let client = Client::new(args.socket.as_deref())?;
    let mut vectors = client.vectors(columns.0)?;
    args.sandbox.confine(&answers.reach())?;
    answers.open()?;
    let mut sequencer = Sequencer::new(SequencerOptions::default());
    let mut damaged = 0_u64;
    let ended = loop {
        if asking.is_done() || stop.load(Ordering::Relaxed) {
            break Ok(());
        }
        match vectors.next(WAIT) {
            Ok(VectorsNext::Datagram(bytes)) => {
                let read = sequencer.datagram_at_once(&bytes, |_, all| asking.vectors(all));
                if let Err(error) = read {
                    damaged += 1;
                    if damaged == 1 {
                        warn!("received vectors that cannot be read: {error}");
                    }
                }
            }
            Ok(VectorsNext::Nothing) => {}
            Ok(VectorsNext::End(end)) => {
                for (cache, sent) in end.caches {
                    // What can be read is taken, and the rest is counted.
                    let _ = sequencer.finish(cache, Some(sent), |_, vector| {
                        asking.vectors(std::slice::from_ref(vector));
                    });
                }
                break Ok(());
            }
            Ok(VectorsNext::Gone) => {
                break Err(anyhow!(
                    "the recording ended without reporting the number of vectors that it sent: \
                     the last ones may be missing"
                ));
            }
            Err(error) => break Err(error.into()),
        }
        answers.show(asking)?;
    };
    info!(
        "packets without an IP header are left out: the recording does not send them to queries, and they are not counted"
    );
    let lost = sequencer.counters().lost;
    if lost > 0 {
        asking.incomplete.push(format!(
            "{} lost on the way from the recording, because they arrived faster than the queries \
             processed them: their packets are missing from the answers",
            count_of(lost, "vector")
        ));
    }
    ended
}
