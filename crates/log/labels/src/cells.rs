//! Rows, times and protocols as data sets write them.

use crate::error::{ContentError, ValueError};

/// The columns of a CSV file by name, ignoring case and spaces.
#[derive(Debug)]
pub(crate) struct Columns(Vec<String>);

impl Columns {
    pub(crate) fn of(first: &str) -> Self {
        let plain = |name: &str| name.trim().trim_matches('"').to_ascii_lowercase();
        Self(
            first
                .trim_start_matches('\u{feff}')
                .split(',')
                .map(plain)
                .collect(),
        )
    }

    /// The first column with one of these names.
    pub(crate) fn find(&self, names: &[&str]) -> Option<usize> {
        names
            .iter()
            .find_map(|name| self.0.iter().position(|column| column == name))
    }

    pub(crate) fn need(&self, names: &[&'static str]) -> Result<usize, ContentError> {
        self.find(names).ok_or(ContentError::NoColumn(names[0]))
    }

    /// Their names, in order.
    pub(crate) fn names(&self) -> &[String] {
        &self.0
    }
}

/// The rows of a CSV file with their line numbers.
pub(crate) fn rows(
    text: &str,
) -> impl Iterator<Item = Result<(u64, csv::StringRecord), csv::Error>> {
    let reader = csv::ReaderBuilder::new()
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let mut records = reader.into_records();
    std::iter::from_fn(move || {
        let record = records.next()?;
        let line = records.reader().position().line();
        Some(record.map(|r| (line.saturating_sub(1), r)))
    })
}

/// No time is further from 1970, and no flow longer: about 3000 years, in seconds.
const SECONDS_MAX: f64 = 1e11;

/// How long a flow lasted, in ns. Negative durations, which occur in data sets, are invalid.
#[allow(clippy::cast_possible_truncation)]
pub(crate) fn duration_ns(seconds: f64) -> i128 {
    (seconds.clamp(0.0, SECONDS_MAX) * 1e9) as i128
}

/// A time in ns since 1970, and its resolution in ns: seconds, RFC 3339, or the formats that
/// CICFlowMeter has used, in local time at this offset.
pub(crate) fn time_ns(text: &str, offset_s: i64) -> Option<(i128, i128)> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        #[allow(clippy::cast_possible_truncation)]
        return (seconds.abs() <= SECONDS_MAX).then_some(((seconds * 1e9) as i128, 1_000));
    }
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Some((time.as_nanosecond(), 1));
    }
    let forms = [
        ("%d/%m/%Y %I:%M:%S %p", 1_000_000_000),
        ("%d/%m/%Y %H:%M:%S", 1_000_000_000),
        ("%d/%m/%Y %H:%M", 60_000_000_000),
        ("%Y-%m-%d %H:%M:%S%.f", 1_000),
        ("%Y-%m-%dT%H:%M:%S%.f", 1_000),
        ("%Y-%m-%d %H:%M", 60_000_000_000),
    ];
    forms.iter().find_map(|(form, step)| {
        let time = jiff::civil::DateTime::strptime(form, text).ok()?;
        let time = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
        let ns = time.timestamp().as_nanosecond() - i128::from(offset_s) * 1_000_000_000;
        Some((ns, *step))
    })
}

/// A protocol by number or name.
pub(crate) fn protocol(value: &str) -> Result<u8, ValueError> {
    Ok(match value.to_ascii_lowercase().as_str() {
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "icmp6" | "ipv6-icmp" => 58,
        "sctp" => 132,
        number => number.parse().map_err(|source| ValueError::Protocol {
            text: value.to_owned(),
            source,
        })?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_the_forms_of_data_sets() {
        let ns = |text, offset| time_ns(text, offset).unwrap().0;
        assert_eq!(ns("1499083200.5", 0), 1_499_083_200_500_000_000);
        assert_eq!(ns("2017-07-03T12:00:00Z", 0), 1_499_083_200_000_000_000);
        assert_eq!(
            ns("03/07/2017 09:00:00", -3 * 3600),
            1_499_083_200_000_000_000
        );
        assert_eq!(ns("3/7/2017 9:00", -3 * 3600), 1_499_083_200_000_000_000);
        assert_eq!(time_ns("yesterday", 0), None);
    }

    #[test]
    fn times_that_no_clock_shows_are_refused() {
        for text in ["inf", "-inf", "nan", "1e300", "-1e300"] {
            assert_eq!(time_ns(text, 0), None, "{text}");
        }
    }
}
