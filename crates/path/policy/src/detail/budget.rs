//! A budget of detail as users write it.

use std::fmt;
use std::str::FromStr;

use strata_wire::{Printable, human_bytes, parse_bytes};

/// How much payload beyond headers is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DetailBudget {
    /// This share of it, from 0 to 1.
    Share(f64),
    /// This many bytes of it per second of packet time, by all workers together, over such a time.
    Rate(f64, Over),
}

/// Over what time a rate is kept: what is not spent may be spent later within a tenth of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// A rate per second or minute.
    Minute,
    /// A rate per hour.
    Hour,
    /// A rate per day.
    Day,
}

impl Over {
    /// Seconds of it.
    #[must_use]
    pub fn seconds(self) -> f64 {
        match self {
            Self::Minute => 60.0,
            Self::Hour => 3_600.0,
            Self::Day => 86_400.0,
        }
    }
}

/// Largest rate: a day at it is less than 2^63 bytes.
const RATE_MAX: f64 = 1e13;

/// Text that is not a budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a budget of detail: {}", advice(text))]
pub struct BudgetError {
    text: String,
}

/// What to write instead. A number alone could mean either of two opposites, or two units.
fn advice(text: &str) -> String {
    let number = text.trim().parse::<f64>().ok();
    let write = "write a share of the payload as in 10%, a rate as in 50MB/s or 20GB/day, or none \
                 for no limit";
    match number {
        Some(0.0) => String::from(
            "write 0% to keep no payload beyond headers, or none for no limit (20GB/day and 10% are \
             other budgets)",
        ),
        Some(number) if (0.0..=100.0).contains(&number) => {
            format!("it lacks a unit: for a share write {number}%; {write}")
        }
        _ => write.to_owned(),
    }
}

impl DetailBudget {
    /// That of a recording with the built-in model, unless another is named: a tenth of the payload.
    /// How much a model wants to keep of traffic that it does not fit says nothing.
    pub const OF_BUILT_IN_MODEL: Self = Self::Share(0.1);

    /// Over what time it is kept, in seconds: a share, over a day.
    #[must_use]
    pub fn period(self) -> f64 {
        match self {
            Self::Share(_) => Over::Day.seconds(),
            Self::Rate(_, over) => over.seconds(),
        }
    }

    /// A budget, or `none`.
    ///
    /// # Errors
    ///
    /// If the text is neither.
    pub fn parse(text: &str) -> Result<Option<Self>, BudgetError> {
        match text.trim() {
            "none" => Ok(None),
            text => text.parse().map(Some),
        }
    }

    /// The text of a budget, or `none`; [`DetailBudget::parse`] reads it.
    #[must_use]
    pub fn text(budget: Option<Self>) -> String {
        budget.map_or_else(|| String::from("none"), |budget| budget.to_string())
    }

    /// That of each of several workers, if it is divided equally.
    #[must_use]
    pub fn of_one(self, workers: f64) -> Self {
        match self {
            Self::Share(share) => Self::Share(share),
            Self::Rate(rate, over) => Self::Rate(rate / workers, over),
        }
    }

    /// This part of it, from 0 to 1.
    #[must_use]
    pub fn part(self, part: f64) -> Self {
        match self {
            Self::Share(share) => Self::Share(share * part),
            Self::Rate(rate, over) => Self::Rate(rate * part, over),
        }
    }
}

impl FromStr for DetailBudget {
    type Err = BudgetError;

    #[allow(clippy::cast_precision_loss, reason = "bounded before")]
    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let refused = || BudgetError {
            text: Printable(text).to_string(),
        };
        if let Some(percent) = text.strip_suffix('%') {
            let digits = percent.trim_end();
            let is_plain = digits.chars().all(|c| c.is_ascii_digit() || c == '.');
            let percent = digits.parse::<f64>().ok().filter(|_| is_plain);
            let share = percent.filter(|p| (0.0..=100.0).contains(p));
            return share.map(|p| Self::Share(p / 100.0)).ok_or_else(refused);
        }
        let (bytes, per) = text.split_once('/').ok_or_else(refused)?;
        let (seconds, over) = match per.trim() {
            "s" | "second" => (1.0, Over::Minute),
            "min" | "minute" => (60.0, Over::Minute),
            "h" | "hour" => (3_600.0, Over::Hour),
            "d" | "day" => (86_400.0, Over::Day),
            _ => return Err(refused()),
        };
        let bytes = parse_bytes(bytes.trim()).map_err(|_| refused())?;
        let rate = bytes as f64 / seconds;
        (rate <= RATE_MAX)
            .then_some(Self::Rate(rate, over))
            .ok_or_else(refused)
    }
}

impl fmt::Display for DetailBudget {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounded when it was read"
    )]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // As many digits as were given: 0.07 * 100 is not 7.
            Self::Share(share) => write!(f, "{}%", (share * 1e8).round() / 1e6),
            Self::Rate(rate, over) => {
                let (seconds, unit) = match over {
                    Over::Minute if *rate >= 1_000.0 => (1.0, "s"),
                    Over::Minute => (60.0, "min"),
                    Over::Hour => (3_600.0, "h"),
                    Over::Day => (86_400.0, "day"),
                };
                let bytes = (rate * seconds).round() as u64;
                write!(f, "{}/{unit}", human_bytes(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_as_people_write_them_and_refused_with_examples() {
        for (text, budget, shown) in [
            ("10%", Some(DetailBudget::Share(0.1)), "10%"),
            ("7 %", Some(DetailBudget::Share(0.07)), "7%"),
            ("0.5%", Some(DetailBudget::Share(0.005)), "0.5%"),
            ("0%", Some(DetailBudget::Share(0.0)), "0%"),
            (
                "50MB/s",
                Some(DetailBudget::Rate(5e7, Over::Minute)),
                "50.0 MB/s",
            ),
            (
                "864MB/day",
                Some(DetailBudget::Rate(1e4, Over::Day)),
                "864.0 MB/day",
            ),
            (
                "6GB/min",
                Some(DetailBudget::Rate(1e8, Over::Minute)),
                "100.0 MB/s",
            ),
            (
                "86400/d",
                Some(DetailBudget::Rate(1.0, Over::Day)),
                "86.4 kB/day",
            ),
            (
                "36MB/h",
                Some(DetailBudget::Rate(1e4, Over::Hour)),
                "36.0 MB/h",
            ),
            (
                "600/min",
                Some(DetailBudget::Rate(10.0, Over::Minute)),
                "600 B/min",
            ),
            ("none", None, "none"),
        ] {
            let parsed = DetailBudget::parse(text).unwrap();
            match (parsed, budget) {
                (Some(DetailBudget::Share(a)), Some(DetailBudget::Share(b))) => {
                    assert!((a - b).abs() < 1e-9 * b.max(1.0), "{text}");
                }
                (Some(DetailBudget::Rate(a, over)), Some(DetailBudget::Rate(b, other))) => {
                    assert!((a - b).abs() < 1e-9 * b.max(1.0) && over == other, "{text}");
                }
                other => assert_eq!(other, (None, None), "{text}"),
            }
            assert_eq!(DetailBudget::text(parsed), shown);
        }
        for (text, what) in [
            (
                "0",
                "write 0% to keep no payload beyond headers, or none for no limit",
            ),
            ("10", "for a share write 10%"),
            ("200", "write a share of the payload"),
        ] {
            let error = DetailBudget::parse(text).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        for text in [
            "",
            "10",
            "%",
            "-1%",
            "101%",
            "NaN%",
            "inf%",
            "1e1%",
            "+5%",
            "50MB",
            "50MB/",
            "MB/s",
            "50MB/week",
            "/s",
            "99999999TB/s",
            "None",
            "ten%",
        ] {
            let error = DetailBudget::parse(text).unwrap_err().to_string();
            assert!(error.contains("20GB/day"), "{text}: {error}");
        }
    }
}
