//! Which pages of a stream are given up: the oldest, beyond a size or an age.

use std::time::Duration;

/// How much of a stream is kept. Whole pages go, so up to a page more is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Retention {
    /// Bytes of pages.
    pub bytes: Option<u64>,
    /// Age of records.
    pub age: Option<Duration>,
}

/// A page that a stream has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its number in the stream.
    pub index: u64,
    /// When it was begun, ns since 1970.
    pub created_ns: u64,
}

/// How many of a stream's pages, oldest first, are to be given up now. The last page, which may
/// still grow, is never one of them.
#[must_use]
pub fn expired(
    retention: &Retention,
    held: impl ExactSizeIterator<Item = Held>,
    page_bytes: u32,
    now_ns: u64,
) -> usize {
    let pages = held.len();
    let allowed = retention
        .bytes
        .map(|bytes| bytes.div_euclid(u64::from(page_bytes.max(1))).max(1));
    let by_bytes = allowed.map_or(0, |allowed| {
        let kept = usize::try_from(allowed).map_or(pages, |allowed| allowed.min(pages));
        pages.wrapping_sub(kept)
    });
    let Some(age) = retention.age else {
        return by_bytes;
    };
    // The youngest record of a page is as old as the next page, at least.
    let too_old = |next: &Held| {
        let since = now_ns.saturating_sub(next.created_ns);
        u128::from(since) > age.as_nanos()
    };
    by_bytes.max(held.skip(1).take_while(too_old).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_by_size_or_age_and_the_last_stays() {
        let pages = |count: u64| {
            let pages: Vec<_> = (0..count)
                .map(|index| Held {
                    index,
                    created_ns: 100 * index,
                })
                .collect();
            pages.into_iter()
        };
        let by = |bytes, age_ns: Option<u64>| Retention {
            bytes,
            age: age_ns.map(Duration::from_nanos),
        };
        assert_eq!(expired(&by(None, None), pages(10), 4, 10_000), 0);
        assert_eq!(expired(&by(Some(16), None), pages(10), 4, 10_000), 6);
        assert_eq!(expired(&by(Some(1), None), pages(10), 4, 10_000), 9);
        assert_eq!(expired(&by(Some(u64::MAX), None), pages(10), 4, 10_000), 0);
        assert_eq!(expired(&by(None, Some(250)), pages(10), 4, 1_000), 7);
        assert_eq!(expired(&by(None, Some(0)), pages(10), 4, 10_000), 9);
        assert_eq!(expired(&by(Some(16), Some(250)), pages(10), 4, 1_000), 7);
        assert_eq!(expired(&by(Some(16), Some(900)), pages(0), 4, 1_000), 0);
    }
}
