//! Names of files in a log's directory.

/// The file whose lock keeps a second writer away.
pub(crate) const LOCK_NAME: &str = "lock";
/// The file that readers lock shared, and a process that deletes files locks exclusively.
pub(crate) const READERS_NAME: &str = "readers";
/// The file whose lock keeps a second compaction away.
pub const COMPACTION_NAME: &str = "compaction";

/// Whether a name stays within the log.
pub(crate) fn is_safe_name(name: &str) -> bool {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./=".contains(c);
    !name.contains("..") && !name.starts_with('/') && name.chars().all(safe)
}

/// Whether a name is a URL, because the file is stored outside the log's directory.
#[must_use]
pub fn is_remote(name: &str) -> bool {
    name.contains("://")
}

/// The URL to which `strata move` has moved this file of a part: the place that holds the
/// directories `packets`, `flows` and so on. `None` for a file in the log's directory.
#[must_use]
pub fn tier_of(name: &str) -> Option<&str> {
    let (dir, _) = name.rsplit_once('/').filter(|_| is_remote(name))?;
    let kind = match dir.rsplit_once('/')? {
        (hour, class) if class.starts_with("retention=") => hour.rsplit_once('/')?.0,
        _ => dir,
    };
    let (tier, _) = kind.rsplit_once('/')?;
    let (_, place) = tier.split_once("://")?;
    (!place.is_empty()).then_some(tier)
}

/// Whether Strata could have chosen this name: letters, digits and `-_./=`, below the log's
/// directory, `s3://` or `file:///`.
#[must_use]
pub fn is_file_name(name: &str) -> bool {
    let elsewhere = ["s3://", "file:///"].iter();
    let mut elsewhere = elsewhere.filter_map(|scheme| name.strip_prefix(scheme));
    is_safe_name(elsewhere.next().unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_holds_the_directories_of_parts() {
        let tiers = [
            "s3://bucket/a/b",
            "file:///mnt/cold",
            "file:///hour=1/retention=x/meta",
        ];
        for tier in tiers {
            for name in [
                "packets/hour=2026-01-31T13/retention=benign/00000001.parquet.age",
                "meta/00000001.strata",
            ] {
                assert_eq!(tier_of(name), None);
                assert_eq!(tier_of(&format!("{tier}/{name}")), Some(tier));
            }
        }
        for name in ["file:///x", "file:///meta/x", "s3://x", "s3://", ""] {
            assert_eq!(tier_of(name), None, "{name}");
        }
    }

    #[test]
    fn names_stay_below_where_files_lie() {
        for name in [
            "packets/hour=2026-01-31T13/retention=benign/00000001.parquet.age",
            "s3://bucket/a/b/packets/1.parquet",
            "file:///mnt/cold/meta/1.strata",
        ] {
            assert!(is_file_name(name), "{name}");
        }
        for name in [
            "/etc/passwd",
            "../x",
            "s3://b/../x",
            "file:///a/../b",
            "http://h/x",
            "a b",
        ] {
            assert!(!is_file_name(name), "{name}");
        }
    }
}
