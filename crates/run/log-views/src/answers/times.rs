//! Times as the API writes them.

use jiff::Timestamp;
use jiff::civil::DateTime;
use strata_wire::unix_ns;

use crate::answers::refused::Refused;

/// Nanoseconds of a second.
pub const SECOND_NS: u64 = 1_000_000_000;

/// The last year of which 64 bits of nanoseconds hold a part.
const LAST_YEAR: i16 = 2554;

/// Now, RFC 3339.
pub fn now() -> String {
    text(unix_ns())
}

/// A time in RFC 3339 with nanoseconds.
pub fn text(ns: u64) -> String {
    match Timestamp::from_nanosecond(i128::from(ns)) {
        Ok(time) => format!("{time:.9}"),
        Err(_) => format!("{ns} ns after 1970"),
    }
}

/// Seconds since 1970, for series.
#[allow(clippy::cast_precision_loss, reason = "microseconds are enough there")]
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A time of a request: RFC 3339, or seconds since 1970; from 1970 to 2554, which 64 bits of nanoseconds hold.
///
/// # Errors
///
/// If it is not a time.
pub fn parse(field: &'static str, text: &str) -> Result<u64, Refused> {
    let wrong = || {
        let error =
            format!("'{text}' is not a time: write 2026-01-31T13:05:00Z, or seconds since 1970");
        Refused::invalid(field, error)
    };
    let beyond = || {
        let (first, last) = (self::text(0), self::text(u64::MAX));
        Refused::invalid(
            field,
            format!("'{text}' is out of range: write a time from {first} to {last}"),
        )
    };
    if let Ok(time) = text.parse::<Timestamp>() {
        return u64::try_from(time.as_nanosecond()).map_err(|_| beyond());
    }
    // The end of the year 9999 is no `Timestamp`, since it may be later elsewhere.
    let civil = text.trim_end_matches(['Z', 'z']).parse::<DateTime>();
    if civil.is_ok_and(|civil| !(1970..=LAST_YEAR).contains(&civil.year())) {
        return Err(beyond());
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !are_digits(whole) || !are_digits(fraction) {
        return Err(wrong());
    }
    let fraction: String = fraction.chars().take(9).collect();
    let fraction: u64 = format!("{fraction:0<9}").parse().map_err(|_| wrong())?;
    let whole: u64 = whole.parse().map_err(|_| beyond())?;
    let ns = whole
        .checked_mul(SECOND_NS)
        .and_then(|ns| ns.checked_add(fraction));
    ns.ok_or_else(beyond)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        for ns in [0, 1, 1_769_864_400_123_456_789] {
            assert_eq!(parse("from", &text(ns)).unwrap(), ns);
        }
        assert_eq!(parse("from", "2.5").unwrap(), 2_500_000_000);
        assert_eq!(
            parse("from", "1769864400").unwrap(),
            1_769_864_400 * SECOND_NS
        );
        for wrong in [
            "",
            "x",
            "-1",
            "1e9",
            "99999999999999999999",
            "1969-01-01T00:00:00Z",
            ".",
        ] {
            assert!(parse("from", wrong).is_err(), "{wrong}");
        }
        for beyond in [
            "9999-12-31T00:00:00Z",
            "1969-01-01T00:00:00Z",
            "18446744074",
            "99999999999999999999",
        ] {
            let said = parse("from", beyond).unwrap_err().error;
            let range = "from 1970-01-01T00:00:00.000000000Z to 2554-07-21T23:34:33.709551615Z";
            assert!(said.contains(range), "{said}");
        }
        assert!(parse("from", "18446744073.709551615").is_ok());
    }
}
