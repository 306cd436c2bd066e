//! Words and numbers as users read and write them.

pub mod colour;
pub mod listing;
pub mod plain;

use std::io;
use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;
use std::sync::Once;

use anyhow::{Context, Result, anyhow, bail};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use strata_filter::{Filter, NetworkNames, ParseError};
use strata_wire::Printable;

pub use strata_wire::count_of;

/// What the answer of a filter lacks: packets that it could not test.
pub fn untested(packets: u64) -> Option<String> {
    (packets > 0).then(|| {
        format!(
            "{} left out untested: the filter tests bytes that were not kept",
            count_of(packets, "packet")
        )
    })
}

/// A filter from trailing arguments, as in tcpdump; `None` without any.
pub fn filter(words: &[String]) -> Result<Option<Filter>> {
    filter_by(words, Filter::parse)
}

/// As [`filter`], where names of networks are known.
pub fn filter_with(words: &[String], names: &dyn NetworkNames) -> Result<Option<Filter>> {
    filter_by(words, |expression| Filter::parse_with(expression, names))
}

fn filter_by(
    words: &[String],
    parse: impl FnOnce(&str) -> Result<Filter, ParseError>,
) -> Result<Option<Filter>> {
    let expression = words.join(" ");
    if expression.trim().is_empty() {
        return Ok(None);
    }
    let parsed = parse(&expression);
    if words.iter().any(|word| is_option(word)) {
        return Ok(Some(parsed.context("options go before the filter")?));
    }
    Ok(Some(parsed?))
}

/// Whether a word of a filter looks like an option.
fn is_option(word: &str) -> bool {
    let name = word.trim_start_matches('-');
    name.len() < word.len() && name.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// A number of bytes: digits, optionally with k, M, G, T (1000) or Ki, Mi, Gi, Ti
/// (1024), and B.
pub fn bytes(text: &str) -> Result<u64> {
    strata_wire::parse_bytes(text).map_err(anyhow::Error::msg)
}

/// A number of packets, flows or bits: digits, optionally with k, M or G (1000).
pub fn number(text: &str) -> Result<u64> {
    let problem =
        || format!("'{text}' is not a number: write digits, optionally followed by k, M or G");
    let digits = text.trim_end_matches(['k', 'K', 'M', 'G']);
    if digits.is_empty() || text.len() > digits.len() + 1 {
        bail!("{}", problem());
    }
    // Otherwise, its range is what is wrong.
    match digits
        .trim_end()
        .bytes()
        .all(|digit| digit.is_ascii_digit())
    {
        true => bytes(text),
        false => bail!("{}", problem()),
    }
}

/// A length of time in ns: digits and s, min, h, d or w.
pub fn duration_ns(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let seconds: u64 = match text[digits.len()..].trim() {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => bail!("{}", not_a_duration(text)),
    };
    let Ok(number) = whole(digits) else {
        bail!("{}", not_a_duration(text));
    };
    number
        .checked_mul(seconds * 1_000_000_000)
        .with_context(|| format!("'{text}' is too long"))
}

/// As [`duration_ns`], or a number of milliseconds (`ms`) or microseconds (`us`).
pub fn short_duration_ns(text: &str) -> Result<u64> {
    let units = [("ms", 1_000_000), ("us", 1_000)];
    for (unit, ns) in units {
        if let Some(digits) = text.strip_suffix(unit) {
            let number = whole(digits.trim_end()).map_err(|_| anyhow!(not_a_duration(text)))?;
            return number
                .checked_mul(ns)
                .with_context(|| format!("'{text}' is too long"));
        }
    }
    duration_ns(text)
}

/// A number of digits; the largest one if it has too many, so that the error names its range.
fn whole(digits: &str) -> Result<u64, ParseIntError> {
    let parsed = digits.parse::<u64>();
    parsed.or_else(|error| match error.kind() {
        IntErrorKind::PosOverflow => Ok(u64::MAX),
        _ => Err(error),
    })
}

/// The message for an invalid duration.
pub fn not_a_duration(text: &str) -> String {
    format!("'{text}' is not a length of time: write one like 90s, 10m, 2h, 7d or 4w")
}

/// A share as a percentage.
#[allow(clippy::cast_precision_loss)]
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return String::from("-");
    }
    format!("{:.2} %", part as f64 * 100.0 / whole as f64)
}

/// The local time zone: the one that TZ says (POSIX.1, tzset(3)), else that of /etc/localtime, else UTC.
///
/// # Errors
///
/// If TZ says one that is not known here: times would be in another than was meant.
pub fn zone() -> Result<TimeZone> {
    let said = std::env::var_os("TZ").filter(|said| !said.is_empty());
    match (TimeZone::try_system(), said) {
        (Ok(zone), _) => Ok(zone),
        (Err(_), None) => Ok(TimeZone::UTC),
        (Err(_), Some(said)) => bail!(
            "TZ={}: unknown time zone: write a name from /usr/share/zoneinfo (package tzdata), \
             such as Europe/Berlin, or a rule such as CET-1CEST,M3.5.0,M10.5.0/3",
            Printable(&said.to_string_lossy())
        ),
    }
}

/// As [`zone`], to show times in; UTC, which is reported once and by each time's offset, if TZ names one
/// that is not known.
pub fn zone_to_show() -> TimeZone {
    static SAID: Once = Once::new();
    zone().unwrap_or_else(|error| {
        SAID.call_once(|| warn(&format!("{error}; times are shown as UTC")));
        TimeZone::UTC
    })
}

/// A time in ns as local time.
pub fn time(ts_ns: u64) -> String {
    match Timestamp::from_nanosecond(i128::from(ts_ns)) {
        Ok(time) => {
            let zoned = time.to_zoned(zone_to_show());
            zoned.strftime("%Y-%m-%d %H:%M:%S%.9f %:z").to_string()
        }
        Err(_) => format!("{ts_ns} ns after 1970"),
    }
}

/// A time in seconds since 1970 as local time.
pub fn time_of_second(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok();
    match time.and_then(|time| Timestamp::from_second(time).ok()) {
        Some(time) => {
            let zoned = time.to_zoned(zone_to_show());
            zoned.strftime("%Y-%m-%d %H:%M:%S %:z").to_string()
        }
        None => format!("{seconds} s after 1970"),
    }
}

/// A number given by the user, of a type without 0 and below.
///
/// # Errors
///
/// If it is not such a number, in words for the user.
pub fn at_least_1<N: FromStr>(text: &str) -> Result<N, String> {
    let number = text.parse();
    number.map_err(|_| String::from("write a whole number, at least 1"))
}

/// A time given by the user: seconds since 1970 with a fraction, RFC 3339, a local date and time,
/// or HH:MM or HH:MM:SS on the day of `reference_ns`.
pub fn parse_time(text: &str, reference_ns: u64) -> Result<u64> {
    let to_ns = |time: Timestamp| {
        let ns = u64::try_from(time.as_nanosecond()).ok();
        ns.with_context(|| format!("'{text}' is before 1970: a log has no such times"))
    };
    if let Ok(time) = text.parse::<Timestamp>() {
        return to_ns(time);
    }
    if let Ok(local) = text.parse::<jiff::civil::DateTime>() {
        return to_ns(local.to_zoned(zone()?)?.timestamp());
    }
    // A name of a zone would be ignored.
    if text.contains(':') && !text.contains('[') {
        if let Some(time) = clock_of_zone(text, reference_ns)? {
            return to_ns(time);
        }
        let parsed = text
            .parse::<jiff::civil::Time>()
            .or_else(|_| format!("{text}:00").parse());
        if let Ok(clock) = parsed {
            let zone = zone()?;
            let reference = Timestamp::from_nanosecond(i128::from(reference_ns))?;
            let day = reference.to_zoned(zone.clone()).date();
            return to_ns(day.to_datetime(clock).to_zoned(zone)?.timestamp());
        }
    }
    if let Some(ns) = epoch_seconds(text) {
        if ns < HOURS_AND_YEARS && ns > 0 && reference_ns >= HOURS_AND_YEARS {
            bail!(
                "'{text}' would be {text} seconds after the start of 1970, long before the packets: write an hour \
                 as 13:00, a year as 2026-01-01T00:00"
            );
        }
        return Ok(ns);
    }
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
    if !text.is_empty() && digits.is_empty() {
        bail!(
            "'{text}' is too large for seconds since 1970 (the largest is {}, in the year 2554); is it in \
             milliseconds?",
            u64::MAX / 1_000_000_000
        );
    }
    bail!(
        "'{text}' is not a time: write 13:05, 13:05:30, 2026-01-31T13:05, \
         2026-01-31T13:05:00Z, or seconds since 1970"
    )
}

/// Seconds below these, 9999, are rather an hour, 1305, or a year.
const HOURS_AND_YEARS: u64 = 10_000 * 1_000_000_000;

/// The time of a clock with its distance from UTC, as in 13:05-05:00, on the day of `reference_ns` there; `None` if
/// the text has none.
fn clock_of_zone(text: &str, reference_ns: u64) -> Result<Option<Timestamp>> {
    let Some(clock) = text.find(['+', '-', 'Z', 'z']).map(|at| &text[..at]) else {
        return Ok(None);
    };
    let zone = &text[clock.len()..];
    let clock = match clock.matches(':').count() {
        1 => format!("{clock}:00"),
        _ => clock.to_owned(),
    };
    // Any day tells how far the zone is from UTC.
    let there = format!("2000-01-02T{clock}{zone}").parse::<Timestamp>();
    let utc = format!("2000-01-02T{clock}Z").parse::<Timestamp>();
    let (Ok(there), Ok(utc)) = (there, utc) else {
        return Ok(None);
    };
    let ahead = utc.duration_since(there);
    let reference = Timestamp::from_nanosecond(i128::from(reference_ns))?;
    let day = reference.checked_add(ahead)?.to_zoned(TimeZone::UTC).date();
    let time = format!("{day}T{clock}{zone}").parse::<Timestamp>()?;
    Ok(Some(time))
}

fn epoch_seconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |s: &str| s.chars().all(|c| c.is_ascii_digit());
    if fraction.len() > 9 || !digits(seconds) || !digits(fraction) {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<9}").parse().ok()?;
    seconds
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(fraction)
}

/// An error and its causes, each stated once: some errors include their cause.
pub fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    lines(&plain::words(&text))
}

/// A text of several lines made printable: parts of it may come from outside.
fn lines(text: &str) -> String {
    let shown: Vec<String> = text
        .split('\n')
        .map(|line| Printable(line).to_string())
        .collect();
    shown.join("\n")
}

/// Reports in one line that something went wrong.
pub fn warn(text: &str) {
    tracing::warn!("{}", Printable(text));
}

/// Whether the error is that our output has lost its reader.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let mut kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        // This one does not give its cause.
        if let Some(csv::ErrorKind::Io(error)) = cause.downcast_ref().map(csv::Error::kind) {
            kind = Some(error.kind());
        }
        kind == Some(io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("4096").unwrap(), 4096);
        assert_eq!(bytes("10MB").unwrap(), 10_000_000);
        assert_eq!(bytes("8 MiB").unwrap(), 8 << 20);
        assert!(bytes("ten").is_err() && bytes("5 parsecs").is_err());
    }

    #[test]
    fn numbers_have_a_unit_and_a_range() {
        assert_eq!(number("20k").unwrap(), 20_000);
        assert_eq!(number("18446744073709551615").unwrap(), u64::MAX);
        for text in [
            "18446744073709551616",
            "99999999999999999999",
            "18446744073710M",
        ] {
            let refused = number(text).unwrap_err().to_string();
            assert!(refused.contains("out of range"), "{refused}");
        }
        for text in ["", "k", "-5", "+5", "1.5k", "5kk", "5T"] {
            let refused = number(text).unwrap_err().to_string();
            assert!(refused.contains("is not a number"), "{text}: {refused}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(parse_time("1.5", 0).unwrap(), 1_500_000_000);
        assert_eq!(
            parse_time("1970-01-01T00:00:02Z", 0).unwrap(),
            2_000_000_000
        );
        let noon = parse_time("2026-01-31T12:00", 0).unwrap();
        assert_eq!(parse_time("12:00", noon + 3_600_000_000_000).unwrap(), noon);
        assert!(
            parse_time("yesterday", 0)
                .unwrap_err()
                .to_string()
                .contains("13:05")
        );
        assert!(parse_time("18446744073", 0).is_ok());
        let late = parse_time("99999999999", 0).unwrap_err().to_string();
        assert!(late.contains("the largest is 18446744073,"), "{late}");
    }
}
