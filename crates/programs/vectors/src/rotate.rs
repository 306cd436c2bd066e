//! Output files of limited size or time, as tcpdump's -C, -G and -W make them.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use strata_gpv_run::RotationSpec;
use strata_terminal::log_options::rotate_bytes;
use strata_terminal::output::refuse;
use strata_terminal::text;

/// When a file is followed by another.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Rotation of -w")]
pub(super) struct RotateArgs {
    /// Rotate: begin another file once the current one exceeds this size, in millions of bytes or
    /// with a unit (500MB, 2GiB). From the second file on, the name gets a number before its
    /// extension: vectors.gpv, vectors.1.gpv, vectors.2.gpv.
    #[arg(short = 'C', long, value_name = "SIZE")]
    rotate_size: Option<String>,

    /// Rotate: begin another file once the current one is this many seconds old. The name needs a
    /// time format of strftime(3), such as %Y%m%d-%H%M%S. A new file begins only once there are
    /// vectors for it.
    #[arg(short = 'G', long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    rotate_seconds: Option<u64>,

    /// Limit the number of files to N: with -C, the oldest is overwritten, and all names have
    /// numbers from 0; with -G, the command ends once N files are complete.
    #[arg(short = 'W', long, value_name = "N", value_parser = text::at_least_1::<NonZeroU32>)]
    filecount: Option<NonZeroU32>,
}

impl RotateArgs {
    /// The rotation of this file; `None` if it grows without bound.
    pub(super) fn of(&self, write: Option<&Path>) -> Result<Option<RotationSpec>> {
        if self.rotate_size.is_none() && self.rotate_seconds.is_none() {
            return match self.filecount {
                None => Ok(None),
                Some(_) => Err(refuse("-W applies only to rotated files: add -C or -G")),
            };
        }
        if write.is_none_or(|path| path.as_os_str() == "-") {
            return Err(refuse("-C and -G: rotated files need a name: -w FILE"));
        }
        let bytes_max = self.rotate_size.as_deref().map(rotate_bytes).transpose()?;
        if bytes_max == Some(0) {
            return Err(refuse("-C must be above 0"));
        }
        let rotation = RotationSpec {
            bytes_max,
            every: self.rotate_seconds.map(Duration::from_secs),
            files: self.filecount,
        };
        if rotation.every.is_some() {
            if bytes_max.is_some() && rotation.files.is_some() {
                return Err(refuse("-W is for -C or for -G, not for both at once"));
            }
            // Names with times of a zone other than that of TZ would be wrong.
            text::zone()?;
        }
        Ok(Some(rotation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(size: Option<&str>, seconds: Option<u64>, files: Option<u32>) -> RotateArgs {
        RotateArgs {
            rotate_size: size.map(str::to_owned),
            rotate_seconds: seconds,
            filecount: files.and_then(NonZeroU32::new),
        }
    }

    #[test]
    fn sizes_are_in_millions_of_bytes_or_with_a_unit() {
        let of = |size| args(Some(size), None, None).of(Some(Path::new("v")));
        let bytes = |size| of(size).unwrap().unwrap().bytes_max;
        assert_eq!(bytes("2"), Some(2_000_000));
        assert_eq!(bytes("1KiB"), Some(1024));
    }

    #[test]
    fn what_cannot_be_rotated_is_refused() {
        let refused = |args: RotateArgs, name: Option<&str>| {
            let error = args.of(name.map(Path::new)).expect_err("refused");
            error.to_string()
        };
        assert!(refused(args(None, None, Some(3)), Some("v")).contains("-W"));
        assert!(refused(args(Some("1"), None, None), None).contains("-w FILE"));
        assert!(refused(args(Some("1"), None, None), Some("-")).contains("-w FILE"));
        assert!(refused(args(Some("0"), None, None), Some("v")).contains("-C must be above 0"));
        let both = args(Some("1"), Some(5), Some(2));
        assert!(refused(both, Some("v%Y%m%d%H%M%S")).contains("both"));
        assert!(args(None, None, None).of(None).unwrap().is_none());
    }
}
