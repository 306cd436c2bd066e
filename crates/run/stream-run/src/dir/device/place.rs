//! Block devices of this machine: how they are called, and whether somebody else uses one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::error::{In as _, Result, StreamError};

/// Names that stay when devices are found in another order.
const BY_ID: &str = "/dev/disk/by-id";

pub(crate) fn is_device(place: &Path) -> bool {
    fs::metadata(place).is_ok_and(|found| found.file_type().is_block_device())
}

/// The device itself, whatever links lead to it.
pub(super) fn resolved(place: &Path) -> Result<PathBuf> {
    let named = || place.display().to_string();
    let path = fs::canonicalize(place).in_file(named)?;
    if is_device(&path) {
        return Ok(path);
    }
    Err(StreamError::Damaged {
        file: named(),
        problem: "not a block device, or no longer one".to_owned(),
    })
}

/// A name for the device that stays: that which the user has given, if it is a link below `/dev`, which udev, LVM and
/// others make for that; or one by its serial number; or its own.
pub(crate) fn stable_name(given: &Path) -> Result<PathBuf> {
    let device = resolved(given)?;
    let is_link = given.starts_with("/dev") && given != device;
    Ok(match is_link {
        true => given.to_path_buf(),
        false => link_to(&device, Path::new(BY_ID)).unwrap_or(device),
    })
}

/// The first link in a directory that leads to a device.
fn link_to(device: &Path, links: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(links).ok()?;
    let links = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let leads = |link: &PathBuf| fs::canonicalize(link).is_ok_and(|path| path == device);
    links.filter(leads).min()
}

/// Opened so that no other process can mount or claim it until this is dropped.
pub(super) fn claim(device: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_EXCL | libc::O_NOFOLLOW);
    options.open(device)
}

/// Claims a device that is to be written over.
pub(super) fn claim_for_writing(device: &Path) -> Result<File> {
    let named = || device.display().to_string();
    let refuse = |problem: String| StreamError::Damaged {
        file: named(),
        problem: format!("it cannot be a stripe: {problem}"),
    };
    let numbers = numbers(device).in_file(named)?;
    let claimed = claim(device).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => refuse(match user_of(device, &numbers) {
            Some(user) => format!("it is in use: {user}"),
            None => "it is in use, perhaps by another program".to_owned(),
        }),
        _ => StreamError::File {
            file: named(),
            source: error,
        },
    })?;
    let read_only = fs::read_to_string(format!("/sys/dev/block/{}/ro", numbers.0));
    if read_only.is_ok_and(|text| text.trim() == "1") {
        return Err(refuse("it is read-only: name another device".to_owned()));
    }
    Ok(claimed)
}

/// Major and minor number of a device, and of its partitions, as the kernel writes them.
struct Numbers(String, Vec<String>);

fn numbers(device: &Path) -> io::Result<Numbers> {
    let rdev = fs::metadata(device)?.rdev();
    let own = format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let mut partitions = Vec::new();
    for entry in fs::read_dir(format!("/sys/dev/block/{own}"))
        .into_iter()
        .flatten()
    {
        let path = entry?.path();
        if path.join("partition").exists()
            && let Ok(text) = fs::read_to_string(path.join("dev"))
        {
            partitions.push(text.trim().to_owned());
        }
    }
    Ok(Numbers(own, partitions))
}

/// Who uses a device, in words, if the kernel says so.
fn user_of(device: &Path, Numbers(own, partitions): &Numbers) -> Option<String> {
    let is_it = |number: &str| number == own || partitions.iter().any(|one| one == number);
    let name = device.to_str()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        // Some file systems have a number of their own, but name the device.
        let is_named = fields.contains(&name);
        if let (Some(number), Some(place)) = (fields.get(2), fields.get(4))
            && (is_it(number) || is_named)
        {
            return Some(format!("it, or a partition of it, is mounted at {place}"));
        }
    }
    for number in partitions.iter().chain([own]) {
        let mut holders = fs::read_dir(format!("/sys/dev/block/{number}/holders")).ok()?;
        if let Some(Ok(holder)) = holders.next() {
            let holder = holder.file_name();
            return Some(format!("{} is built on it", holder.display()));
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").ok()?;
    let mut swaps = swaps
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    swaps
        .any(|swap| swap == name)
        .then(|| "as swap space".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_called_by_the_link_that_leads_to_it() {
        let folder = tempfile::TempDir::new().unwrap();
        let (links, device) = (folder.path().join("by-id"), folder.path().join("sdx"));
        assert_eq!(link_to(&device, &links), None);
        fs::create_dir(&links).unwrap();
        fs::write(&device, "").unwrap();
        for (name, to) in [
            ("wwn-0x5", "../sdx"),
            ("ata-DISK_7", "../sdx"),
            ("ata-A", "../sdy"),
        ] {
            std::os::unix::fs::symlink(to, links.join(name)).unwrap();
        }
        let device = device.canonicalize().unwrap();
        assert_eq!(link_to(&device, &links), Some(links.join("ata-DISK_7")));
    }
}
