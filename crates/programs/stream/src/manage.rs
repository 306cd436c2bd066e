//! `strata stream create`, `list`, `check`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use strata_auth::tls::TlsFiles;
use strata_stream::{Form, Geometry, Retention, StreamName};
use strata_stream_run::{
    StreamCheck, StreamDir, StreamSpec, StreamStatus, StripeTls, check_streams,
};
use strata_terminal::listing::{ColumnForm, Reader, listing};
use strata_terminal::output::{refuse, standard};
use strata_terminal::text;
use strata_wire::{PrintableJson, grouped, human_bytes, unix_ns};

use super::place::{ServerArgs, at_server, not_at_server};
use super::{name, say_what_is_gone};

/// Kept by default, if there is room for it.
const RETAIN_BYTES: u64 = 10_000_000_000;

/// Arguments of `strata stream create`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata stream create streams/ kernel
  strata stream create streams/ events --retain 100GB,7d
  strata stream create streams/ events --stripe /disk2/streams --stripe /disk3/streams
  strata stream create streams/ events --stripe /dev/disk/by-id/nvme-SERIAL
  strata stream create streams/ events --stripe 192.0.2.10:4793/disk1 \\
      --tls-cert c.crt --tls-key c.key --tls-ca ca.crt

Streams of a directory share its disk space, in pages of 4 MiB. A new stream takes 256 KiB, or with
stripes a whole page; --pages 4KiB-4KiB-64KiB makes small pages, for many streams with few records
each. A stream at its limit overwrites its own oldest page. Names have 1 to 64 letters, digits, '.',
'_' and '-'.

With --stripe, the pages of all streams of the directory go in turn to the directory itself, to
directories on other disks, and to whole disks, partitions or volumes, which must be empty unless
--overwrite is given. If a disk is full, fails or is unmounted, readers count its records as
missing, and new records go to the other disks until it is back. The directory itself has the
positions of all pages: without it, no record can be read. A stripe HOST:PORT/NAME is on a server
(strata stream serve --offer-stripe NAME=DIR). Later commands use the certificate given here for
that server: do not move the certificate's files.")]
pub(super) struct CreateArgs {
    /// The directory of streams, created if missing.
    dir: PathBuf,
    /// The name of the new stream.
    name: String,
    /// Keep at most this size, records up to this age, or, with a comma, both: 10GB, 7d, 10GB,7d.
    /// Only whole pages are deleted. A page is deleted by age once the next page is too old as
    /// well, and only while a process appends to the stream [default: 10GB]
    #[arg(long, value_name = "SIZE|AGE", value_delimiter = ',')]
    retain: Vec<String>,
    /// Set the sizes of the page directory, the page tables and the data pages of a new directory.
    #[arg(long, value_name = "SIZES", default_value = "4KiB-4KiB-4MiB")]
    pages: String,
    /// Also spread pages over this stripe: a directory on another disk, created if missing, a block
    /// device without a file system, or a stripe that a server offers. May be given several times,
    /// even for an existing directory of streams; a directory has up to 15 stripes.
    #[arg(long, value_name = "DIR|DEVICE|HOST:PORT/NAME")]
    stripe: Vec<PathBuf>,
    /// Use a block device as a stripe even if it holds other data; that data is lost.
    #[arg(long = "overwrite")]
    format: bool,
    #[command(flatten)]
    server: ServerArgs,
    /// Set the form of records: sealed (each record has its number and a keyed tag) or linked (the
    /// form that a network switch can write, docs/formats/stream.md; without a tag, damage within
    /// the bytes of a record is not detected).
    #[arg(long = "record-form", value_name = "FORM", default_value = "sealed", value_parser = ["sealed", "linked"])]
    records: String,
}

/// Arguments of `strata stream list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Rates are averages over about the last minute; the process that appends reports them. The lag of a
consumer (tail --cursor @NAME) is the number of records that it has not read. Records that were
missing, or were deleted before the consumer read them, are counted since its cursor was first
saved.")]
pub(super) struct ListArgs {
    /// The directory of streams.
    dir: PathBuf,
    /// Print JSON, an object per line.
    #[arg(long)]
    json: bool,
}

/// Arguments of `strata stream check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: 1 if records are missing or a file is damaged. Records that were deleted because of
--retain do not count as missing.")]
pub(super) struct CheckArgs {
    /// The directory of streams.
    dir: PathBuf,
    /// Print JSON, an object per line.
    #[arg(long)]
    json: bool,
}

/// What `option` has in these words: a size, an age or both.
pub(super) fn retention(option: &str, words: &[String]) -> Result<Retention> {
    let mut retention = Retention::default();
    for word in words.iter().map(|word| word.trim()) {
        let is_first = if let Ok(age_ns) = text::duration_ns(word) {
            retention
                .age
                .replace(Duration::from_nanos(age_ns))
                .is_none()
        } else if let Ok(bytes) = text::bytes(word) {
            retention.bytes.replace(bytes).is_none()
        } else {
            return Err(refuse(format!(
                "{option} '{word}': write a size such as 10GB, an age such as 7d, or both \
                 separated by a comma. Numbers are whole; units are kB, MB, GB, TB, KiB, MiB, GiB \
                 and TiB for sizes, and s, min, h, d and w for ages"
            )));
        };
        if retention.age.is_some_and(|age| age.is_zero()) {
            return Err(refuse(format!(
                "{option} '{word}': an age of 0 would keep nothing: give 1s or more, or no age"
            )));
        }
        if !is_first {
            return Err(refuse(format!(
                "{option}: at most one size and one age are allowed"
            )));
        }
    }
    Ok(retention)
}

fn geometry(sizes: &str) -> Result<Geometry> {
    let wrong = || {
        refuse(format!(
            "--pages {sizes}: write three sizes such as 4KiB-4KiB-4MiB"
        ))
    };
    let parse = |size: &str| {
        let bytes = text::bytes(size).ok();
        bytes
            .and_then(|bytes| u32::try_from(bytes).ok())
            .ok_or_else(wrong)
    };
    let parts: Vec<&str> = sizes.split('-').collect();
    let &[directory, table, page] = parts.as_slice() else {
        return Err(wrong());
    };
    let geometry = Geometry {
        directory_bytes: parse(directory)?,
        table_bytes: parse(table)?,
        page_bytes: parse(page)?,
    };
    let checked = geometry.checked();
    checked.map_err(|error| refuse(format!("--pages {sizes}: {error}")))
}

/// The requested stripes, whether they are on this machine, and how to connect to them if not.
fn stripes(args: &CreateArgs) -> Result<Vec<(&Path, bool, Option<StripeTls>)>> {
    let mut stripes = Vec::new();
    for stripe in &args.stripe {
        let text = stripe.display().to_string();
        let server = at_server(&text);
        let tls = match server {
            Some((address, stripe)) => {
                name(stripe)?;
                let files = args.server.files(address)?;
                files.as_ref().map(absolute).transpose()?
            }
            None => None,
        };
        stripes.push((stripe.as_path(), server.is_none(), tls));
    }
    if args.server.are_given() && stripes.iter().all(|(_, is_here, _)| *is_here) {
        return Err(refuse(
            "--tls-cert and --insecure are for a server: write --stripe HOST:PORT/NAME",
        ));
    }
    Ok(stripes)
}

/// Where files are, from wherever a process is started.
fn absolute(files: &TlsFiles<'_>) -> Result<StripeTls> {
    let of = |path: &Path| fs::canonicalize(path).with_context(|| path.display().to_string());
    Ok(StripeTls {
        certificate: of(files.certificate)?,
        key: of(files.key)?,
        authority: of(files.authority)?,
    })
}

/// Bytes of a stream at most.
fn kept_max(geometry: Geometry) -> u64 {
    geometry.pages_max() * u64::from(geometry.page_bytes)
}

pub(super) fn create(args: &CreateArgs) -> Result<()> {
    let name = name(&args.name)?;
    not_at_server(&args.dir)?;
    let retention = retention("--retain", &args.retain)?;
    let wanted = geometry(&args.pages)?;
    let is_default = wanted == Geometry::default();
    let stripes = stripes(args)?;
    if args.format && args.stripe.is_empty() {
        return Err(refuse(
            "--overwrite applies to a device: name it with --stripe",
        ));
    }
    let is_new = !args.dir.exists();
    let dir = StreamDir::create(&args.dir, (!is_default).then_some(wanted))?;
    let created = create_in(&dir, args, (&name, retention), &stripes);
    if created.is_err() && is_new {
        // Nothing is left of a refused request, unless another process uses it by now.
        let _ = dir.remove_unused();
    }
    created
}

/// Creates a stream, once its stripes are there.
fn create_in(
    dir: &StreamDir,
    args: &CreateArgs,
    (name, mut retention): (&StreamName, Retention),
    stripes: &[(&Path, bool, Option<StripeTls>)],
) -> Result<()> {
    let page_bytes = u64::from(dir.geometry().page_bytes);
    if retention.bytes.is_some_and(|bytes| bytes < 2 * page_bytes) {
        return Err(refuse(format!(
            "--retain: a stream keeps whole pages, at least two of them: give {} or more",
            human_bytes(2 * page_bytes)
        )));
    }
    let kept_max = kept_max(dir.geometry());
    if args.retain.is_empty() {
        retention.bytes = Some(RETAIN_BYTES.min(kept_max));
        if kept_max < RETAIN_BYTES {
            text::warn(&format!(
                "the stream keeps only {}: it cannot have more pages of this size",
                human_bytes(kept_max)
            ));
        }
    }
    if retention.bytes.is_some_and(|bytes| bytes > kept_max) {
        return Err(refuse(format!(
            "--retain: a stream in {} holds at most {}: its page tables cannot list more pages",
            args.dir.display(),
            human_bytes(kept_max)
        )));
    }
    let form = match args.records.as_str() {
        "linked" => Form::Linked {
            redundancy: 3,
            block_bytes: Some(dir.geometry().page_bytes.min(256 << 10)),
        },
        _ => Form::Sealed,
    };
    for (stripe, is_here, tls) in stripes {
        dir.add_stripe(stripe, (args.format, unix_ns()), tls.as_ref())?;
        if *is_here {
            say_if_on_one_disk(&args.dir, stripe);
        }
    }
    dir.create_stream(name, &StreamSpec { retention, form }, unix_ns())?;
    Ok(())
}

/// A stripe on the directory's own disk is of no use; most likely, its disk is not mounted.
fn say_if_on_one_disk(dir: &Path, stripe: &Path) {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    if stripe.is_dir() && device(dir) == device(stripe) {
        text::warn(&format!(
            "--stripe {}: this directory is on the same disk as {}: is the other disk mounted?",
            stripe.display(),
            dir.display()
        ));
    }
}

/// Records and bytes a second.
fn rates(status: &StreamStatus) -> Option<(f64, f64)> {
    let (now, before) = status.state.as_ref()?.recent();
    let ns = now
        .time_ns
        .checked_sub(before.time_ns)
        .filter(|&ns| ns > 0)?;
    #[allow(clippy::cast_precision_loss, reason = "shown with few digits")]
    let a_second = |amount: u64| amount as f64 * 1e9 / ns as f64;
    let records = now.records.checked_sub(before.records)?;
    let bytes = now.bytes.checked_sub(before.bytes)?;
    Some((a_second(records), a_second(bytes)))
}

fn writer_of(status: &StreamStatus) -> &'static str {
    match &status.state {
        _ if status.is_appended => "appending",
        Some(state) if state.is_clean => "closed",
        _ => "not closed",
    }
}

fn status_json(status: &StreamStatus) -> Value {
    let description = &status.description;
    let next_seq = status.state.as_ref().map(|state| state.next_seq);
    let consumers = status.cursors.iter().map(|(name, saved)| {
        let lag = next_seq.zip(saved.next_seq);
        json!({
            "name": name,
            "cursor": saved.cursor,
            "lag": lag.and_then(|(end, next)| end.checked_sub(next)),
            "missing": saved.missing,
            "expired": saved.expired,
            "time_ns": saved.time_ns,
        })
    });
    let rates = rates(status);
    json!({
        "name": description.name.as_str(),
        "records": next_seq,
        "kept_bytes": status.pages * u64::from(description.geometry.page_bytes),
        "retain_bytes": description.retention.bytes.map(|bytes| bytes.min(kept_max(description.geometry))),
        "retain_s": description.retention.age.map(|age| age.as_secs()),
        "created_ns": description.created_ns,
        "writer": writer_of(status),
        "end": status.state.as_ref().map(|state| state.end.to_string()),
        "oldest_page": status.state.as_ref().map(|state| state.oldest),
        "records_a_second": rates.map(|(records, _)| records),
        "bytes_a_second": rates.map(|(_, bytes)| bytes),
        "consumers": consumers.collect::<Vec<_>>(),
        "problems": status.problems,
    })
}

/// A stream and its consumers.
fn rows_of(status: &StreamStatus) -> Vec<[String; 6]> {
    let unknown = || "-".to_owned();
    let next_seq = status.state.as_ref().map(|state| state.next_seq);
    let kept = status.pages * u64::from(status.description.geometry.page_bytes);
    let rates = rates(status);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rates are shown as whole numbers"
    )]
    let (records, bytes) = (
        rates.map(|(records, _)| grouped(records as u64)),
        rates.map(|(_, bytes)| human_bytes(bytes as u64)),
    );
    let mut rows = vec![[
        status.description.name.to_string(),
        next_seq.map_or_else(unknown, grouped),
        human_bytes(kept),
        records.unwrap_or_else(unknown),
        bytes.unwrap_or_else(unknown),
        writer_of(status).to_owned(),
    ]];
    for (consumer, saved) in &status.cursors {
        let lag = next_seq.zip(saved.next_seq);
        let lag = lag.and_then(|(end, next)| end.checked_sub(next));
        rows.push([
            format!("  @{consumer}"),
            lag.map_or_else(unknown, |lag| format!("lag {}", grouped(lag))),
            String::new(),
            format!("{} missing", grouped(saved.missing)),
            format!("{} deleted", grouped(saved.expired)),
            saved.cursor.clone(),
        ]);
    }
    rows
}

pub(super) fn list(args: &ListArgs) -> Result<()> {
    let dir = StreamDir::open(&args.dir)?;
    say_what_is_gone(&dir.gone_stripes()?);
    let mut rows = vec![
        [
            "stream",
            "records",
            "kept",
            "records/s",
            "bytes/s",
            "writer",
        ]
        .map(str::to_owned),
    ];
    let mut unreadable = 0;
    for name in dir.names()? {
        match dir.status(&name) {
            Ok(status) => {
                for problem in &status.problems {
                    text::warn(problem);
                    unreadable += 1;
                }
                if args.json {
                    writeln!(standard(), "{}", status_json(&status))?;
                } else {
                    rows.extend(rows_of(&status));
                }
            }
            Err(error) => {
                unreadable += 1;
                text::warn(&error.to_string());
                if args.json {
                    let problem = error.to_string();
                    let object = json!({"name": name.as_str(), "problem": problem});
                    writeln!(standard(), "{}", PrintableJson(&object.to_string()))?;
                } else {
                    let [records, kept, rate, bytes] = [(); 4].map(|()| "-".to_owned());
                    let name = name.to_string();
                    rows.push([name, records, kept, rate, bytes, "damaged".to_owned()]);
                }
            }
        }
    }
    if !args.json {
        print(rows)?;
    }
    if unreadable > 0 {
        bail!(
            "{} of {} cannot be read",
            text::count_of(unreadable, "file"),
            args.dir.display()
        );
    }
    Ok(())
}

fn print(rows: Vec<[String; 6]>) -> Result<()> {
    let columns = [
        ColumnForm::words(16),
        ColumnForm::numbers(12),
        ColumnForm::numbers(10),
        ColumnForm::numbers(12),
        ColumnForm::numbers(10),
        ColumnForm::words(1).apart(),
    ];
    let page = listing(Reader::of_stdout(), columns, rows);
    Ok(write!(standard(), "{page}")?)
}

fn check_json(check: &StreamCheck) -> Value {
    json!({
        "name": check.name.as_str(),
        "records": check.records,
        "bytes": check.bytes,
        "missing_min": check.unread.missing.0,
        "missing_max": check.unread.missing.1,
        "problems": check.problems,
    })
}

pub(super) fn check(args: &CheckArgs) -> Result<()> {
    let dir = StreamDir::open(&args.dir)?;
    let mut wrong = 0;
    for check in check_streams(&dir)? {
        let (min, max) = check.unread.missing;
        wrong += u64::from(max > 0 || !check.problems.is_empty());
        if args.json {
            writeln!(standard(), "{}", check_json(&check))?;
            continue;
        }
        let missing = match (min, max) {
            (0, 0) => "none missing".to_owned(),
            _ if min == max => format!("{} missing", grouped(min)),
            _ => format!("from {} to {} missing", grouped(min), grouped(max)),
        };
        writeln!(
            standard(),
            "{}: {}, {}, {missing}",
            check.name,
            text::count_of(check.records, "record"),
            human_bytes(check.bytes)
        )?;
        for problem in &check.problems {
            writeln!(standard(), "  {problem}")?;
        }
    }
    say_what_is_gone(&dir.gone_stripes()?);
    if wrong > 0 {
        bail!(
            "{} of {} with missing or damaged records",
            text::count_of(wrong, "stream"),
            args.dir.display()
        );
    }
    Ok(())
}
