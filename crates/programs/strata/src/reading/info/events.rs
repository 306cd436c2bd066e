//! What a recording noted while it ran: its warnings and events, one a line, but deletions to make room together.

use jiff::Timestamp;
use strata_archive::{EARLIER_EVENTS, RoomMade};
use strata_capture::TIME_OUT_OF_RANGE;
use strata_wire::{count_of, grouped};

/// The lines for people: as noted, with one for all deletions in place of the first of them.
pub(super) fn lines(noted: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut room: Option<(usize, Deletions)> = None;
    for warning in noted {
        let (at, text) = dated(warning);
        if let Some(made) = RoomMade::parse(text) {
            let first = || (lines.len(), Deletions::default());
            let (place, all) = room.get_or_insert_with(first);
            if *place == lines.len() {
                lines.push(String::new());
            }
            all.add(at, made);
            continue;
        }
        // As events are worded that somebody asked for; a warning of an older version is worded like one.
        let is_requested = warning.ends_with(')')
            && warning.contains(" (by ")
            && !warning.contains(TIME_OUT_OF_RANGE);
        let what = if is_requested { "event" } else { "warning" };
        lines.push(format!("{what}: {warning}"));
    }
    if let Some((place, all)) = room {
        let has_all = !noted.iter().any(|line| line.ends_with(EARLIER_EVENTS));
        lines[place] = all.text(has_all);
    }
    lines
}

/// The time at the beginning of a line, where there is one, and the rest.
fn dated(line: &str) -> (Option<Timestamp>, &str) {
    let parsed = line.split_once(' ').and_then(|(time, rest)| {
        let at = time.parse::<Timestamp>().ok()?;
        Some((Some(at), rest))
    });
    parsed.unwrap_or((None, line))
}

/// Deletions to make room, added up.
#[derive(Debug, Default)]
struct Deletions {
    times: u64,
    made: RoomMade,
    /// When the first and the last was, as far as that was noted.
    span: Option<(Timestamp, Timestamp)>,
}

impl Deletions {
    fn add(&mut self, at: Option<Timestamp>, made: RoomMade) {
        self.times = self.times.saturating_add(1);
        self.made = self.made.and(made);
        if let Some(at) = at {
            let (first, last) = self.span.unwrap_or((at, at));
            self.span = Some((first.min(at), last.max(at)));
        }
    }

    /// The line; `has_all`: no earlier deletion is missing from the notes.
    fn text(&self, has_all: bool) -> String {
        let made = &self.made;
        let least = if has_all { "" } else { "at least " };
        let mut text = format!(
            "deleted to make room (--disk-limit, remove_percent): {least}{}",
            count_of(made.block_files, "block file")
        );
        if made.parts > 0 {
            text += &format!(" and {}", count_of(made.parts, "compacted part"));
        }
        text += &format!(" with {}", count_of(made.packets, "packet"));
        if let Some(newest) = made.newest {
            text += &format!(", the newest from {newest}");
        }
        let times = match self.times {
            1 => String::from("once"),
            times => format!("{} times", grouped(times)),
        };
        text += &format!("; {times}");
        match self.span {
            None => {}
            Some((first, last)) if first == last => text += &format!(", at {first}"),
            Some((first, last)) => text += &format!(", between {first} and {last}"),
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletions_are_one_line_and_the_rest_is_as_noted() {
        let noted = [
            "mode log-all (by uid 0)",
            "2026-01-31T13:00:01Z deleted 1 block file and 0 compacted parts with 10 packets, the \
             newest from 2026-01-31T12:00:00Z, 2.0 MB, to make room on the disk",
            "2026-01-31T13:00:02Z the disk is slow",
            "2026-01-31T13:00:09Z deleted 2 block files and 1 compacted part with 1,000 packets, \
             the newest from 2026-01-31T12:30:00Z, 2.0 MB, to make room on the disk",
        ]
        .map(str::to_owned);
        let expected = [
            "event: mode log-all (by uid 0)",
            "deleted to make room (--disk-limit, remove_percent): 3 block files and 1 compacted part \
             with 1,010 packets, the newest from 2026-01-31T12:30:00Z; 2 times, between \
             2026-01-31T13:00:01Z and 2026-01-31T13:00:09Z",
            "warning: 2026-01-31T13:00:02Z the disk is slow",
        ];
        assert_eq!(lines(&noted), expected);
        let forgotten = [format!("7 {EARLIER_EVENTS}"), noted[1].clone()];
        let least = "deleted to make room (--disk-limit, remove_percent): at least 1 block file ";
        assert!(lines(&forgotten)[1].starts_with(least));
        let one = lines(&noted[1..2]);
        assert_eq!(
            one,
            [
                "deleted to make room (--disk-limit, remove_percent): 1 block file with 10 packets, \
              the newest from 2026-01-31T12:00:00Z; once, at 2026-01-31T13:00:01Z"
            ]
        );
    }
}
