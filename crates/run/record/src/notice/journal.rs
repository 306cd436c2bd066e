//! Events as lines: for the journal and for the log's manifest.

use std::collections::VecDeque;

use strata_archive::EARLIER_EVENTS;
use strata_control::Event;
use strata_wire::Printable;

/// An event as a line of the log's manifest, which has no times of its own.
pub(crate) fn dated(event: &Event) -> String {
    let second = event
        .at
        .split_once('.')
        .map(|(second, _)| format!("{second}Z"));
    let at = Printable(second.as_ref().unwrap_or(&event.at)).to_string();
    format!("{at} {}", line(event))
}

/// An event as a line for the journal. Parts of it may come from a request.
pub(crate) fn line(event: &Event) -> String {
    let [who, what, why] =
        [&event.who, &event.what, &event.why].map(|text| Printable(text).to_string());
    match (happened(event), why.is_empty()) {
        (true, true) => what,
        (true, false) => format!("{what}: {why}"),
        (false, true) => format!("{what} (by {who})"),
        (false, false) => format!("{what} (by {who}: {why})"),
    }
}

/// Whether it happened by itself.
pub(crate) fn happened(event: &Event) -> bool {
    event.is_alert
}

/// Events for the log's manifest: the latest, bounded by number and by bytes.
#[derive(Default)]
pub(crate) struct Told {
    lines: VecDeque<String>,
    bytes: usize,
    forgotten: u64,
}

/// Maximum number of event lines in the manifest, and their bytes.
const LINES_MAX: usize = 1000;
const LINES_BYTES_MAX: usize = 256 << 10;

impl Told {
    pub(crate) fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.lines.len() > LINES_MAX || self.bytes > LINES_BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else {
                return;
            };
            self.bytes -= oldest.len();
            self.forgotten += 1;
        }
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        let earlier = format!("{} {EARLIER_EVENTS}", self.forgotten);
        let earlier = (self.forgotten > 0).then_some(earlier);
        earlier.into_iter().chain(self.lines).collect()
    }
}
