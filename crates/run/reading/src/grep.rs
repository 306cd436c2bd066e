//! `strata grep`: packets whose payload, as far as it was kept, has a pattern.

mod pattern;
mod streams;

use std::borrow::Cow;
use std::io::{IsTerminal as _, stdout};
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;

use anyhow::Result;
use serde_json::Value;
use strata_query::PacketRows;
use strata_terminal::progress::Progress;
use strata_terminal::selection::{Logs, report, say_untested};
use strata_terminal::text;
use strata_wire::{PrintableJson, grouped};
use tracing::{info, warn};

use crate::line::Line;
use crate::names::Owners;
use crate::read::{Clock, Lines, PrintArgs, named, one_less};
use pattern::PatternArgs;
use streams::Streams;

/// Bytes shown before and after the start of what was found.
const SHOWN_BEFORE: usize = 16;
const SHOWN_AFTER: usize = 64;

/// Arguments of `strata grep`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata grep log/ 'GET /[^ ]*\\.php'
  strata grep log/ --literal 'User-Agent: sqlmap' 'tcp port 80'
  strata grep log/ --hex '16 03 01' --json | jq -r .src
  strata grep tap1/ tap2/ '(?i)password' --stream

PATTERN is a regular expression for bytes, in the language of Rust's regex crate: '.' is any byte
but a line feed, '(?i)' ignores case, '(?s)' lets '.' match line feeds too. Only payload is
searched: the bytes after the headers that `strata read` shows. Payload that was not kept cannot be
searched; the summary on standard error counts the packets of which only a part was kept.

Each line is a line of `strata read`, the position of the match in the payload (negative if, with
--stream, it begins in an earlier packet), and the match with some bytes before and after it.

Exit status: 0 if all kept bytes of the selected packets were searched, even if nothing was
found; 1 if not, because of an invalid filter or time, no log, damaged packets, packets whose
interface or classification record is missing from the log, or a filter that applies to no interface
of the log (standard error names it); 2 if the command line is invalid.")]
pub struct Args {
    /// Search the log in this directory. Further logs may follow before the pattern.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    #[command(flatten)]
    pattern: PatternArgs,

    /// Search the payload of each direction of a TCP connection as one stream: a match may begin in
    /// an earlier packet, up to 4 KiB before, if no byte in between is missing.
    #[arg(long)]
    stream: bool,

    #[command(flatten)]
    print: PrintArgs,

    /// Print a JSON object per packet, as `strata read --json` does, with match_at and match added.
    #[arg(long, conflicts_with_all = ["utc", "date"])]
    json: bool,

    /// Search for this pattern, in packets that match the tcpdump filter after it, if one is given.
    /// The filter sees only the bytes that were kept.
    #[arg(value_name = "LOG... PATTERN FILTER", required = true)]
    words: Vec<String>,
}

/// How much was searched.
#[derive(Default)]
struct Searched {
    packets: u64,
    /// Those of which a part was not kept.
    cut: u64,
    found: u64,
}

impl Searched {
    fn say(&self) {
        let found = text::count_of(self.found, "packet");
        let searched = text::count_of(self.packets, "packet");
        match self.cut {
            _ if self.packets == 0 => info!("no packets were searched"),
            0 => info!("searched {searched}, all kept whole; found matches in {found}"),
            cut => info!(
                "searched {searched}, {} of them kept only in part; found matches in {found}",
                grouped(cut)
            ),
        }
    }
}

/// A match in a packet.
struct Found<'a> {
    /// Where it begins, counted from the start of the packet's payload.
    at: i64,
    /// The match, with some bytes around it.
    shown: Cow<'a, [u8]>,
}

impl<'a> Found<'a> {
    /// A match in `searched`, of which the last bytes are the payload, from `payload_at` on.
    fn of(searched: &'a [u8], payload_at: usize, found: &Range<usize>) -> Self {
        let from = found.start.saturating_sub(SHOWN_BEFORE);
        let to = found.start.saturating_add(SHOWN_AFTER).min(searched.len());
        let signed = |at: usize| i64::try_from(at).expect("a payload is shorter than 2^63 bytes");
        Self {
            at: signed(found.start).saturating_sub(signed(payload_at)),
            shown: Cow::Borrowed(&searched[from..to]),
        }
    }

    fn into_owned(self) -> Found<'static> {
        Found {
            at: self.at,
            shown: Cow::Owned(self.shown.into_owned()),
        }
    }
}

/// Prints the packets in which the pattern is found.
pub fn run(args: &Args) -> Result<()> {
    // Lines on a terminal and a bar would be in each other's way.
    let progress = Progress::unless(stdout().is_terminal(), Progress::of_bytes);
    let (logs, words) = Logs::open(&args.log, &args.words, &args.print.key, &progress)?;
    let (pattern, filter) = args.pattern.pattern(words)?;
    let names = args.print.names.read()?;
    let filter = text::filter_with(filter, &names)?;
    let find = logs.find(&args.print.span, filter.as_ref())?;
    let mut owners = Owners::of(&args.print.names, names, &logs, &find)?;
    let clock = Clock::of(&args.print.clock);
    let mut lines = Lines::new();
    let mut rows: Vec<PacketRows> = (0..logs.len()).map(|_| PacketRows::default()).collect();
    let mut streams = Streams::default();
    let mut searched = Searched::default();
    let mut left = args.print.count;
    let exported = logs.each(&find, &args.print.kept.kept(), |log, packet| {
        let headers = rows[log].headers(packet);
        let line = Line::of(packet, &headers);
        let payload = line.payload();
        searched.packets = searched.packets.saturating_add(1);
        let is_whole = packet.data.len() as u64 >= u64::from(packet.wire_len);
        searched.cut = searched.cut.saturating_add(u64::from(!is_whole));
        let found = match args.stream {
            true => streams.find(log, packet, &headers, payload, &pattern),
            false => pattern
                .find(payload)
                .map(|found| Found::of(payload, 0, &found.range())),
        };
        let Some(found) = found else {
            return Ok(ControlFlow::Continue(()));
        };
        searched.found = searched.found.saturating_add(1);
        let shown = found.shown.escape_ascii();
        let line = line.with(owners.ends(&headers)?);
        let log = logs.name(log);
        if args.json {
            let mut object = line.json(log);
            object.insert("match_at".to_owned(), found.at.into());
            object.insert("match".to_owned(), Value::from(shown.to_string()));
            let object = serde_json::to_string(&object)?;
            writeln!(lines.writer(), "{}", PrintableJson(&object))?;
        } else {
            let (log, time, at) = (named(log), clock.text(packet), found.at);
            writeln!(lines.writer(), "{log}{time} {line}  at {at}: \"{shown}\"")?;
        }
        Ok(one_less(&mut left))
    })?;
    drop(progress);
    lines.writer().flush()?;
    match exported.packets {
        0 => logs.say_nothing_found(&find, Some(&args.print.kept)),
        _ => logs.say_not_in_time(&find),
    }
    searched.say();
    if streams.forgotten() > 0 {
        warn!(
            "no longer followed {} of TCP connections, because at most 65,536 are followed at once: matches \
             across packets may be missing; select fewer connections, with a filter or --from and --to",
            text::count_of(streams.forgotten(), "direction")
        );
    }
    say_untested(exported.untested);
    logs.say_other_times();
    logs.say_lost(&find)?;
    report(&exported.damage, exported.left_out)
}
