//! A directory that others could write to.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::notice::{Notice, Tell};

/// Warns of a directory that everybody can write to, or replace: others could put what they like in the
/// place of a log, a store or keys.
pub fn warn_if_shared(dir: &Path, tell: &Tell) {
    if let Some(problem) = shared(dir) {
        tell(&Notice::warning(problem));
    }
}

fn shared(dir: &Path) -> Option<String> {
    const OTHERS_WRITE: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let found = fs::metadata(&dir).ok();
    let is_shared = |found: &fs::Metadata| found.mode() & OTHERS_WRITE != 0;
    if found.as_ref().is_some_and(is_shared) {
        return Some(format!(
            "{0}: anyone can write to this directory: `chmod o-w {0}`, or name another directory",
            dir.display()
        ));
    }
    let above = dir.ancestors().skip(1).find(|above| above.exists())?;
    let above_found = fs::metadata(above).ok().filter(is_shared)?;
    let is_sticky = above_found.mode() & STICKY != 0;
    let ours = [0, rustix::process::geteuid().as_raw()];
    let is_ours = found.is_some_and(|found| ours.contains(&found.uid()));
    // There, only the owner of a directory can rename it.
    (!is_sticky || !is_ours).then(|| {
        format!(
            "{}: anyone can write to {}, {}: use a directory elsewhere",
            dir.display(),
            above.display(),
            match is_sticky {
                true => "so another user could have created this directory first",
                false => "and could replace this directory",
            }
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_that_everybody_can_write_to_is_warned_of() {
        let top = tempfile::tempdir().unwrap();
        let with = |path: &Path, mode| {
            fs::create_dir_all(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let (above, dir) = (top.path().join("above"), top.path().join("above/log"));
        for (mode_above, mode, wanted) in [
            (0o755, 0o750, None),
            (0o755, 0o777, Some("chmod o-w")),
            (0o777, 0o750, Some("could replace this directory")),
            (0o1777, 0o750, None),
        ] {
            with(&above, mode_above);
            with(&dir, mode);
            let said = shared(&dir);
            let is_so = match (&said, wanted) {
                (Some(said), Some(wanted)) => said.contains(wanted),
                (said, wanted) => said.is_none() && wanted.is_none(),
            };
            assert!(is_so, "{mode_above:o} {mode:o}: {said:?}");
        }
        fs::remove_dir(&dir).unwrap();
        assert!(
            shared(&dir)
                .unwrap()
                .contains("created this directory first")
        );
    }
}
