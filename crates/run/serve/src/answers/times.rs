//! Times as the API writes them.

use jiff::Timestamp;
use strata_wire::unix_ns;

use crate::answers::refused::Refused;

/// Nanoseconds of a second.
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// Now, RFC 3339.
pub(crate) fn now() -> String {
    text(unix_ns())
}

/// A time in RFC 3339 with nanoseconds.
pub(crate) fn text(ns: u64) -> String {
    match Timestamp::from_nanosecond(i128::from(ns)) {
        Ok(time) => format!("{time:.9}"),
        Err(_) => format!("{ns} ns after 1970"),
    }
}

/// Seconds since 1970, for series.
#[allow(clippy::cast_precision_loss, reason = "microseconds are enough there")]
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A time of a request: RFC 3339, or seconds since 1970.
pub(crate) fn parse(field: &'static str, text: &str) -> Result<u64, Refused> {
    let wrong = || {
        let error =
            format!("'{text}' is not a time: write 2026-01-31T13:05:00Z, or seconds since 1970");
        Refused::invalid(field, error)
    };
    if let Ok(time) = text.parse::<Timestamp>() {
        return u64::try_from(time.as_nanosecond()).map_err(|_| wrong());
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !are_digits(whole) || !are_digits(fraction) {
        return Err(wrong());
    }
    let fraction: String = fraction.chars().take(9).collect();
    let fraction: u64 = format!("{fraction:0<9}").parse().map_err(|_| wrong())?;
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let ns = whole
        .checked_mul(SECOND_NS)
        .and_then(|ns| ns.checked_add(fraction));
    ns.ok_or_else(wrong)
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
    }
}
