//! `strata info`: what is in a log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use strata_archive::parts::{is_on_a_disk, missing_files};
use strata_blocks::{ClassCount, Record};
use strata_query::Arrivals;
use strata_store::{
    Damage, DetailKept, FileKind, Log, Loss, Recording, Select, State, StoreError, damage_counts,
    damage_texts,
};
use strata_wire::{KeepKind, Ledger, Meta, Printable, PrintableJson, grouped, human_bytes};

mod balance;
mod events;
mod reasons;

use self::balance::Balance;
use self::reasons::Reasons;
use strata_terminal::key::KeyArgs;

use strata_terminal::disk::disk;
use strata_terminal::output::standard;
use strata_terminal::selection::each_once;
use strata_terminal::text::{count_of, percent, time};

/// Arguments of `strata info`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Read the logs in these directories.
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,

    /// Print JSON. With several logs, each recording has the name of its log.
    #[arg(long)]
    json: bool,

    /// Explain why packets were kept: for each granularity, the N kinds of reasons (by default 10)
    /// with the most bytes. Reads and checks the whole log, not just block headers and summaries.
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "10"
    )]
    reasons: Option<usize>,

    /// With --reasons, also show the conditions of the model's trees for each kind.
    #[arg(long, requires = "reasons")]
    trees: bool,

    #[command(flatten)]
    key: KeyArgs,
}

/// Totals over the blocks of a recording.
#[derive(Debug, Default)]
struct Contents {
    classes: Vec<String>,
    arrivals: Arrivals,
    counts: BTreeMap<(u8, KeepKind), ClassCount>,
    damage: Vec<Damage>,
    /// Packets in Parquet files.
    compacted: u64,
    /// Public keys that these are encrypted to.
    encrypted_to: BTreeSet<String>,
    /// Packets stored outside the log's directory.
    elsewhere: u64,
    /// Those of them whose files are in an object store, which is not asked for them.
    in_store: u64,
    balance: Balance,
    reasons: Reasons,
}

/// Whether the user named a key.
#[derive(Clone, Copy, Debug)]
struct HasKey(bool);

impl Contents {
    /// `reasons` if packets are to be read, too, and whether the user named a key.
    fn read(log: &Log, recording: &Recording, reasons: Option<HasKey>) -> Result<Self> {
        let mut contents = Self {
            classes: recording.classes.clone(),
            balance: Balance::of(log, recording),
            ..Self::default()
        };
        for part in log.archive().parts.iter() {
            if part.recording != recording.id || part.packets == 0 {
                continue;
            }
            let missing = missing_files(log.disk().as_ref(), part);
            let is_lost = missing.iter().any(|(kind, _)| *kind == FileKind::Packets);
            contents
                .damage
                .extend(missing.into_iter().map(|(_, damage)| damage));
            // As packets of a block file that is missing: they may still be somewhere, but not here.
            if is_lost {
                contents.arrivals.is_partial = true;
                continue;
            }
            contents.compacted += part.packets;
            contents.elsewhere += if part.is_remote() { part.packets } else { 0 };
            let is_in_store = part.files.iter().any(|file| !is_on_a_disk(&file.name));
            contents.in_store += if is_in_store { part.packets } else { 0 };
            let keys = part.key.iter().flat_map(|key| &key.to);
            contents.encrypted_to.extend(keys.cloned());
            contents.arrivals.part(log.disk().as_ref(), part)?;
            for count in &part.counts {
                let entry = contents.counts.entry((count.class, count.keep));
                *entry.or_default() += count;
            }
        }
        let select = Select {
            without_records: reasons.is_none(),
            ..Select::default()
        };
        let mut is_timed = true;
        for block in log.blocks(recording, &select) {
            let block = match block {
                Ok(block) => block,
                Err(StoreError::Damage(damage)) => {
                    contents.damage.push(damage);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if block.header.packets > 0 {
                let (first_ns, last_ns) = (block.header.ts_min_ns, block.header.ts_max_ns);
                is_timed &= contents.arrivals.take(first_ns, last_ns);
            }
            for count in &block.summary.counts {
                let entry = contents.counts.entry((count.class, count.keep));
                *entry.or_default() += count;
            }
            contents.reasons.begin_block(block.header.worker);
            let mut undefined = 0_u64;
            for record in block.records() {
                match record {
                    Ok(Record::Verdict(id, verdict)) => contents.reasons.define(id, verdict),
                    Ok(Record::Packet(packet)) => {
                        undefined += u64::from(!contents.reasons.knows(packet.interface));
                        contents.reasons.count(&packet);
                    }
                    Ok(Record::Meta(Meta::Interface { id, interface })) => {
                        contents.reasons.interface(id, interface.link);
                    }
                    Ok(Record::Context(json)) => contents.reasons.context(json),
                    Ok(Record::Meta(_) | Record::FlowShare(_)) => {}
                    Err(bad) => contents.damage.push(Damage {
                        file: block.file.clone(),
                        offset: block.records_at() + bad.at as u64,
                        problem: bad.problem.to_owned(),
                        missing: None,
                    }),
                }
            }
            if undefined > 0 {
                contents.damage.push(Damage {
                    file: block.file.clone(),
                    offset: block.offset,
                    problem: format!(
                        "{} that exports leave out: the definition of their interface is missing",
                        count_of(undefined, "packet")
                    ),
                    missing: None,
                });
            }
        }
        if !is_timed {
            contents.arrivals.blocks(log, recording)?;
        }
        if let Some(HasKey(has_key)) = reasons {
            let damage = &mut contents.damage;
            contents.reasons.compacted(log, recording, has_key, damage);
        }
        Ok(contents)
    }

    fn class_name(&self, class: u8) -> &str {
        let name = self.classes.get(usize::from(class));
        name.map_or("unknown", String::as_str)
    }

    fn total(&self) -> ClassCount {
        let mut total = ClassCount::default();
        for count in self.counts.values() {
            total += count;
        }
        total
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let dirs: Vec<&Path> = args.logs.iter().map(PathBuf::as_path).collect();
    each_once(&dirs)?;
    let mut as_json = Vec::new();
    let mut damaged = Vec::new();
    for dir in dirs {
        let (places, unread) = one(args, dir, &mut as_json)?;
        if let Some(places) = places {
            damaged.push(format!("{places} in {}", dir.display()));
        }
        if unread > 0 {
            let unread = count_of(unread, "packet");
            damaged.push(format!("{unread} in {} cannot be read", dir.display()));
        }
    }
    if args.json {
        writeln!(
            standard(),
            "{}",
            PrintableJson(&serde_json::to_string_pretty(&as_json)?)
        )?;
    }
    if !damaged.is_empty() {
        bail!("{}", damaged.join(", "));
    }
    Ok(())
}

/// Prints a log, or adds its recordings to what is printed as JSON; returns the number of damaged places and missing
/// files as text, if there are any, and of packets that could not be read for another reason.
fn one(args: &Args, dir: &Path, as_json: &mut Vec<Value>) -> Result<(Option<String>, u64)> {
    let mut out = standard();
    let name = (args.logs.len() > 1).then(|| dir.display().to_string());
    // Reasons of compacted packets are in files that may be encrypted, or elsewhere.
    let log = match args.reasons {
        Some(_) => args.key.open(dir)?,
        None => Log::on(disk(dir)?)?,
    };
    if let Some(name) = name.as_deref().filter(|_| !args.json) {
        writeln!(out, "{}:", Printable(name))?;
    }
    let (mut damage, mut unread) = (Vec::new(), 0_u64);
    let reasons = args.reasons.map(|_| HasKey(args.key.file().is_some()));
    for recording in log.recordings() {
        let contents = Contents::read(&log, recording, reasons)?;
        damage.extend_from_slice(&contents.damage);
        unread = unread.saturating_add(contents.reasons.unread());
        let stored = log.stored_bytes(recording)?;
        let (ledger, loss) = log.accounting(recording)?;
        let drift = super::drift::read(dir, recording.id)?;
        if args.json {
            let mut json = json_of(recording, &contents, stored, ledger.as_ref(), loss);
            let mut warnings = warnings(&log, recording, loss);
            warnings.extend(contents.reasons.problems().iter().cloned());
            json["warnings"] = warnings.into();
            json["uncompacted"] = balance::uncompacted_json(dir, &log, recording);
            if let Some(name) = &name {
                json["log"] = name.as_str().into();
            }
            json["drift"] = serde_json::to_value(&drift)?;
            if args.reasons.is_some() {
                json["reasons"] = contents.reasons.json();
            }
            as_json.push(json);
            continue;
        }
        writeln!(out, "{}", heading(&log, recording))?;
        writeln!(out, "{}", table(&contents, stored, ledger.as_ref()))?;
        write!(out, "{}", contents.gone(ledger.as_ref(), loss))?;
        write!(out, "{}", balance::uncompacted_line(dir, &log, recording))?;
        if let Some(ledger) = ledger {
            writeln!(out, "{ledger}")?;
            if loss.packets > 0 || loss.incomplete > 0 {
                writeln!(
                    out,
                    "on the way to the relay, {} packets were lost, and {} are cut where a part \
                     was lost",
                    grouped(loss.packets),
                    grouped(loss.incomplete),
                )?;
            }
        } else {
            writeln!(out, "{}", loss_text(loss, log.being_written()(recording)))?;
        }
        if let Some(table) = &recording.flow_table {
            writeln!(
                out,
                "flow table: {}, {} of packets without an entry",
                human_bytes(table.bytes),
                percent(table.without_entry, table.packets),
            )?;
        }
        if let Some(detail) = &recording.detail {
            writeln!(
                out,
                "detail: {} of {} of payload given ({}); over budget: {} packets, {}; by policies, alerts \
                 and first bytes: {}{}",
                human_bytes(detail.given_bytes),
                human_bytes(detail.offered_bytes),
                percent(detail.given_bytes, detail.offered_bytes),
                grouped(detail.over_budget_packets),
                human_bytes(detail.over_budget_bytes),
                human_bytes(detail.outside_bytes),
                dropped_afterwards(ledger.as_ref()),
            )?;
        }
        if let Some(drift) = &drift {
            super::drift::print(&mut out, drift)?;
        }
        for line in events::lines(&recording.warnings) {
            writeln!(out, "{}", Printable(&line))?;
        }
        for text in damage_texts(&contents.damage) {
            writeln!(out, "{}", Printable(&text))?;
        }
        if let Some(most) = args.reasons {
            write!(
                out,
                "{}",
                contents.reasons.text(&log, recording, (most, args.trees))?
            )?;
        }
        writeln!(out)?;
    }
    Ok((damage_counts(&damage), unread))
}

/// Packets that were lost after a budget of detail had decided about them, as the end of its line.
pub(crate) fn dropped_afterwards(ledger: Option<&Ledger>) -> String {
    let dropped = ledger.map(Ledger::dropped_after_decision);
    match dropped.filter(|dropped| dropped.packets > 0) {
        Some(dropped) => format!(
            "; dropped afterwards, with the payload given to them: {}, {}",
            count_of(dropped.packets, "packet"),
            human_bytes(dropped.bytes),
        ),
        None => String::new(),
    }
}

/// The budget of detail, with those packets.
fn detail_json(detail: Option<&DetailKept>, ledger: Option<&Ledger>) -> Value {
    let mut json = json!(detail);
    if let (Value::Object(fields), Some(ledger)) = (&mut json, ledger) {
        let dropped = ledger.dropped_after_decision();
        fields.insert("dropped_packets".into(), dropped.packets.into());
        fields.insert("dropped_bytes".into(), dropped.bytes.into());
    }
    json
}

/// The table of one recording, for the summary of `record`.
pub(crate) fn print_recording(out: &mut impl Write, dir: &Path, id: u32) -> Result<()> {
    let log = Log::open(dir)?;
    let recording = log.recordings().iter().find(|r| r.id == id);
    let recording = recording.context("the recording is not in the manifest")?;
    let contents = Contents::read(&log, recording, None)?;
    let ledger = recording.ledger.as_ref().map(Ledger::from);
    writeln!(
        out,
        "{}",
        table(&contents, log.stored_bytes(recording)?, ledger.as_ref())
    )?;
    let (_, loss) = log.accounting(recording)?;
    write!(out, "{}", contents.gone(ledger.as_ref(), loss))?;
    Ok(())
}

fn heading(log: &Log, recording: &Recording) -> String {
    let state = match recording.state {
        State::Closed => "closed",
        State::Running if log.being_written()(recording) => "being written",
        State::Running => "ended abruptly",
    };
    let mut text = format!(
        "recording {}, {state}: {} by {}, mode {}, model {}",
        recording.id,
        recording.inputs.join(", "),
        recording.program,
        recording.mode,
        recording.model,
    );
    if let Some(shadow) = &recording.shadow {
        let _ = write!(text, ", shadow {}", shadow.model);
    }
    if !recording.filter.is_empty() {
        let _ = write!(text, ", filter '{}'", recording.filter);
    }
    // A switch supplies this text itself.
    Printable(&text).to_string()
}

fn table(contents: &Contents, stored: u64, ledger: Option<&Ledger>) -> String {
    let mut text = String::new();
    if let Some((first, last)) = contents.arrivals.span {
        let _ = writeln!(text, "from {} to {}", time(first), time(last));
    }
    if contents.arrivals.untimed > 0 {
        let untimed = count_of(contents.arrivals.untimed, "packet");
        let _ = writeln!(text, "{untimed} without a time");
    }
    let _ = writeln!(
        text,
        "{:<16} {:<12} {:>12} {:>14} {:>14} {:>9}",
        "class", "granularity", "packets", "wire bytes", "kept bytes", "kept"
    );
    let mut row = |class: &str, keep: &str, c: &ClassCount| {
        let _ = writeln!(
            text,
            "{class:<16} {keep:<12} {:>12} {:>14} {:>14} {:>9}",
            grouped(c.packets),
            grouped(c.wire_bytes),
            grouped(c.logged_bytes),
            percent(c.logged_bytes, c.wire_bytes),
        );
    };
    for (&(class, keep), counts) in &contents.counts {
        let class = Printable(contents.class_name(class)).to_string();
        row(&class, keep.name(), counts);
    }
    let total = contents.total();
    row("all", "", &total);
    // Reduction is relative to everything that passed the filter, sampled or not; once some was deleted,
    // to what is left of it.
    let is_whole = contents.balance.is_whole();
    let captured = ledger
        .filter(|_| is_whole)
        .map_or(total.wire_bytes, captured_bytes);
    if contents.compacted > 0 {
        let keys: Vec<&str> = contents.encrypted_to.iter().map(String::as_str).collect();
        let encrypted = match keys[..] {
            [] => String::new(),
            _ => format!(", encrypted to {}", keys.join(", ")),
        };
        let mut elsewhere = match contents.elsewhere {
            0 => String::new(),
            moved => format!(", {} of them moved to other storage", grouped(moved)),
        };
        if contents.in_store > 0 {
            let packets = grouped(contents.in_store);
            let _ = write!(
                elsewhere,
                " ({packets} in an object store, where `strata verify` looks for them, not this command)"
            );
        }
        let packets = grouped(contents.compacted);
        let _ = writeln!(
            text,
            "{packets} packets are compacted{encrypted}{elsewhere}"
        );
    }
    let _ = write!(
        text,
        "{} {} -> {} {} ({}): {} of {} bytes",
        if is_whole {
            "captured"
        } else {
            "captured, and still in the log:"
        },
        human_bytes(captured),
        if contents.compacted == 0 {
            "block files"
        } else {
            "log"
        },
        human_bytes(stored),
        percent(stored, captured),
        grouped(stored),
        grouped(captured),
    );
    text
}

/// What passed the filter.
fn captured_bytes(ledger: &Ledger) -> u64 {
    ledger.seen.bytes.saturating_sub(ledger.filtered.bytes)
}

fn loss_text(loss: Loss, live: bool) -> String {
    if live {
        return format!(
            "{} packets are in memory, not yet in a file",
            grouped(loss.packets)
        );
    }
    let since = loss.checkpoint_ns.map_or_else(
        || String::from("all packets that were not written yet"),
        |ns| format!("all that arrived after {}", time(ns)),
    );
    format!(
        "not closed: {} packets are known to be lost, and {since}",
        grouped(loss.packets)
    )
}

/// What the recording warned of, and that it was not closed.
fn warnings(log: &Log, recording: &Recording, loss: Loss) -> Vec<String> {
    let mut warnings = recording.warnings.clone();
    if recording.state == State::Running && !log.being_written()(recording) {
        warnings.push(loss_text(loss, false));
    }
    warnings
}

fn json_of(
    recording: &Recording,
    contents: &Contents,
    stored: u64,
    ledger: Option<&Ledger>,
    loss: Loss,
) -> Value {
    let counts = contents.counts.iter().map(|(&(class, keep), c)| {
        json!({
            "class": contents.class_name(class),
            "granularity": keep.name(),
            "packets": c.packets,
            "wire_bytes": c.wire_bytes,
            "kept_bytes": c.logged_bytes,
        })
    });
    let arrivals = &contents.arrivals;
    json!({
        "recording": recording.id,
        "state": recording.state,
        "inputs": recording.inputs,
        "filter": recording.filter,
        "mode": recording.mode,
        "model": recording.model,
        "shadow": recording.shadow.as_ref().map(|shadow| &shadow.model),
        "first_ns": arrivals.span.map(|(first, _)| first),
        "last_ns": arrivals.span.map(|(_, last)| last),
        "untimed_packets": (!arrivals.is_partial).then_some(arrivals.untimed),
        "counts": counts.collect::<Vec<_>>(),
        "compacted_packets": contents.compacted,
        "stored_bytes": stored,
        "captured_bytes": ledger.map(captured_bytes),
        "in_log": balance::json_of_counts(&contents.total()),
        "deleted": contents.deleted_json(),
        "unaccounted_packets": contents.unaccounted(ledger, loss),
        "accounting": recording.ledger,
        "lost_packets": loss.packets,
        "incomplete_packets": loss.incomplete,
        "overwritten_packets": recording.overwritten.iter().map(|o| o.packets).sum::<u64>(),
        "flow_table": recording.flow_table,
        "detail": detail_json(recording.detail.as_ref(), ledger),
        "checkpoint_ns": loss.checkpoint_ns,
        "complete": contents.damage.is_empty() && contents.reasons.unread() == 0,
        "damage": damage_texts(&contents.damage),
    })
}
