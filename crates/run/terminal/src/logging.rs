//! Messages of the running program: lines on standard error, or journal entries.
//!
//! A line on standard error is `strata: ` and the message, with `warning: ` in between if something
//! went wrong. Where standard error is the journal (`JOURNAL_STREAM`, systemd.exec(5)),
//! long-running roles send entries with a priority and fields instead.

use std::fmt::{self, Debug, Write as _};
use std::io::{self, Write, stderr};
use std::str::FromStr;
use std::sync::OnceLock;

use clap::ValueEnum;
use clap::builder::Resettable;
use indicatif::ProgressBar;
use rustix::fs::fstat;
use strata_role::{Level, Notice};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber, error, info, warn};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::text::colour::{self, Colour};

/// Prefix of the targets of our own crates.
const OURS: &str = "strata";
/// The target of messages printed without `warning: `, whatever their level: whole sentences about
/// what happened.
pub const HAPPENED: &str = "strata::happened";
/// Prefix of field names in the journal.
const FIELD_PREFIX: &str = "STRATA";

/// What long-running commands log, and how.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Logging")]
pub struct LoggingArgs {
    /// Log at this level: error, warn, info, debug, trace or off. Individual libraries can have
    /// their own levels, as in RUST_LOG: info,object_store=debug.
    #[arg(
        long,
        value_name = "LEVEL",
        env = "STRATA_LOG",
        default_value = "info",
        default_value_if("quiet", "true", "warn")
    )]
    log_level: Wanted,

    /// Log in this format. By default, journal entries if standard error is the journal, else text.
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

/// Whether a command prints nothing but what went wrong. Of several commands, which all mean the same by it.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct QuietArgs {
    /// Print neither progress nor a summary: only warnings, errors and the output of other options.
    #[arg(long, help_heading = Resettable::Reset)]
    quiet: bool,
}

impl QuietArgs {
    /// Whether it is so.
    #[must_use]
    pub fn is_quiet(self) -> bool {
        self.quiet
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines of text.
    Text,
    /// A JSON object per line.
    Json,
}

/// Which messages are wanted.
#[derive(Clone, Debug)]
struct Wanted(Targets);

impl Default for Wanted {
    fn default() -> Self {
        Self::ours(LevelFilter::INFO)
    }
}

impl Wanted {
    fn ours(level: LevelFilter) -> Self {
        Self(Targets::new().with_target(OURS, level))
    }
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let level = |level: &str| {
            // Left empty, the library would take it as `error`.
            let wanted = level.parse::<LevelFilter>().ok();
            wanted.filter(|_| !level.is_empty()).ok_or_else(|| {
                format!("'{level}' is not a level: write error, warn, info, debug, trace or off")
            })
        };
        let mut targets = Targets::new();
        for directive in text.split(',') {
            // A bare level applies to our crates: libraries log much that is of no use to users.
            let (target, level) = match directive.split_once('=') {
                Some((target, text)) => (target, level(text)?),
                None => (OURS, level(directive)?),
            };
            targets = targets.with_target(target, level);
        }
        Ok(Self(targets))
    }
}

/// From now on messages go to their destination. Without arguments, for a short command, that is
/// standard error.
pub fn begin(args: Option<&LoggingArgs>) {
    let wanted = args.map_or_else(Wanted::default, |args| args.log_level.clone());
    begin_with(wanted, args.map(|args| args.log_format));
}

/// From now on the warnings and errors of a short command go to standard error.
pub(crate) fn begin_quietly() {
    begin_with(Wanted::ours(LevelFilter::WARN), None);
}

fn begin_with(wanted: Wanted, format: Option<Option<LogFormat>>) {
    let is_journal = is_journal();
    let registry = tracing_subscriber::registry().with(wanted.0);
    // Our parent may have closed standard error, which is no reason to exit.
    let lines = tracing_subscriber::fmt::layer()
        .log_internal_errors(false)
        .with_writer(|| AboveBar);
    let of_text = Lines {
        is_journal,
        has_colour: !is_journal && colour::is_wanted(&stderr()),
    };
    let started = match format {
        Some(Some(LogFormat::Json)) => {
            let lines = lines.json().flatten_event(true).with_current_span(false);
            registry.with(lines.with_span_list(false)).try_init()
        }
        Some(None) if is_journal => match journal() {
            Ok(journal) => registry.with(journal).try_init(),
            Err(_) => registry.with(lines.event_format(of_text)).try_init(),
        },
        _ => registry.with(lines.event_format(of_text)).try_init(),
    };
    started.expect("messages get their way once");
}

/// Messages as journal entries.
fn journal() -> io::Result<tracing_journald::Layer> {
    let mappings = PriorityMappings {
        error: Priority::Error,
        warn: Priority::Warning,
        info: Priority::Informational,
        debug: Priority::Debug,
        trace: Priority::Debug,
    };
    let layer = tracing_journald::layer()?
        .with_priority_mappings(mappings)
        .with_field_prefix(Some(FIELD_PREFIX.into()))
        .with_syslog_identifier(String::from("strata"));
    Ok(layer)
}

/// Whether standard error is a journal stream: the environment then gives its device and inode.
fn is_journal() -> bool {
    let Some(stream) = std::env::var_os("JOURNAL_STREAM") else {
        return false;
    };
    let is = fstat(stderr()).map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino));
    is.is_ok_and(|is| stream == *is)
}

/// Lines for people.
struct Lines {
    /// Whether each line begins with its priority, as sd-daemon(3) specifies.
    is_journal: bool,
    /// Whether errors and warnings are coloured.
    has_colour: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        if !target.starts_with(OURS) {
            write!(writer, "{}strata: {level} {target}: ", self.priority(level))?;
            context.format_fields(writer.by_ref(), event)?;
            return writeln!(writer);
        }
        let mut message = Message::default();
        event.record(&mut message);
        let is_warning = level == tracing::Level::WARN && target != HAPPENED;
        let (name, warning) = match (level, is_warning, self.has_colour) {
            (tracing::Level::ERROR, _, true) => (Colour::Red.of("strata:"), String::new()),
            (_, true, true) => ("strata:".into(), Colour::Yellow.of("warning:") + " "),
            (_, true, false) => ("strata:".into(), "warning: ".into()),
            _ => ("strata:".into(), String::new()),
        };
        // All lines of a message have its priority.
        let lines = message
            .0
            .replace('\n', &format!("\n{}", self.priority(level)));
        writeln!(writer, "{}{name} {warning}{lines}", self.priority(level))
    }
}

impl Lines {
    fn priority(&self, level: tracing::Level) -> &'static str {
        match level {
            _ if !self.is_journal => "",
            tracing::Level::ERROR => "<3>",
            tracing::Level::WARN => "<4>",
            tracing::Level::INFO => "<6>",
            _ => "<7>",
        }
    }
}

/// The message of an event, without its other fields.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // Writing to a string does not fail.
            let _ = write!(self.0, "{value:?}");
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// The progress bar, if shown: messages go above it.
static BAR: OnceLock<ProgressBar> = OnceLock::new();

/// From now on messages go above this bar.
pub(crate) fn write_above(bar: ProgressBar) {
    // A program has one bar at most: a second one would not be above the messages.
    let _ = BAR.set(bar);
}

/// Standard error.
struct AboveBar;

impl Write for AboveBar {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let write = || stderr().lock().write_all(bytes);
        BAR.get().map_or_else(write, |bar| bar.suspend(write))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        stderr().flush()
    }
}

/// Logs a role's notice: its level, message and fields.
pub fn notice(notice: &Notice) {
    let (kind, level) = (notice.kind, notice.level);
    let field = |name| notice.field(name);
    match kind {
        "event" => {
            let (who, what, why) = (field("who"), field("what"), field("why"));
            match level {
                Level::Happened => warn!(target: HAPPENED, kind, who, what, why, "{notice}"),
                _ => info!(target: HAPPENED, kind, who, what, why, "{notice}"),
            }
        }
        "capturing" => {
            let ways = field("ways");
            let snaplen = field("snaplen").and_then(|len| len.parse::<u32>().ok());
            info!(kind, ways, snaplen, "{notice}");
        }
        _ => match level {
            Level::Info => info!(kind, "{notice}"),
            Level::Happened => warn!(target: HAPPENED, kind, "{notice}"),
            Level::Warning => warn!(kind, "{notice}"),
            Level::Error => error!(kind, "{notice}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::debug;

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What `work` logs, at this level.
    fn said(level: &str, is_journal: bool, work: impl FnOnce()) -> String {
        let has_colour = false;
        said_as(
            level,
            Lines {
                is_journal,
                has_colour,
            },
            work,
        )
    }

    fn said_as(level: &str, lines: Lines, work: impl FnOnce()) -> String {
        let page = Page::default();
        let writer = page.clone();
        let lines = tracing_subscriber::fmt::layer()
            .event_format(lines)
            .with_writer(move || writer.clone());
        let wanted: Wanted = level.parse().unwrap();
        let subscriber = tracing_subscriber::registry().with(wanted.0).with(lines);
        tracing::subscriber::with_default(subscriber, work);
        let bytes = page.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn all() {
        error!("it ends");
        warn!("odd: {}", 7);
        warn!(target: HAPPENED, kind = "event", "mode log-all: a link is full");
        info!("one\ntwo");
        debug!("detail");
        info!(target: "object_store", tries = 2, "again");
    }

    #[test]
    fn lines_are_as_ever() {
        let expected = "strata: it ends\nstrata: warning: odd: 7\n\
             strata: mode log-all: a link is full\nstrata: one\ntwo\n";
        assert_eq!(said("info", false, all), expected);
    }

    #[test]
    fn errors_and_warnings_stand_out_where_there_are_colours() {
        let lines = Lines {
            is_journal: false,
            has_colour: true,
        };
        let expected = "\x1b[1;31mstrata:\x1b[0m it ends\n\
             strata: \x1b[1;33mwarning:\x1b[0m odd: 7\n\
             strata: mode log-all: a link is full\nstrata: one\ntwo\n";
        assert_eq!(said_as("info", lines, all), expected);
    }

    #[test]
    fn a_level_alone_is_of_our_messages_and_directives_are_as_they_say() {
        let warnings = "strata: it ends\nstrata: warning: odd: 7\n\
             strata: mode log-all: a link is full\n";
        assert_eq!(said("warn", false, all), warnings);
        assert_eq!(said("off", false, all), "");
        assert!(said("debug", false, all).ends_with("strata: detail\n"));
        let store = said("error,object_store=info", false, all);
        assert_eq!(
            store,
            "strata: it ends\nstrata: INFO object_store: again tries=2\n"
        );
        for wrong in ["loud", "strata=loud", "a=b=c", "", "info,"] {
            assert!(wrong.parse::<Wanted>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn lines_have_their_priority_where_the_journal_reads_them() {
        let expected = "<3>strata: it ends\n<4>strata: warning: odd: 7\n\
             <4>strata: mode log-all: a link is full\n<6>strata: one\n<6>two\n";
        assert_eq!(said("info", true, all), expected);
    }
}
