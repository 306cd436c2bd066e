//! Which way of writing blocks is fastest on a disk: bypassing the page cache or through it.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use strata_sys::AlignedBytes;
use strata_sys::disk::OwnBlock;

use super::{Disk, RealDisk, WriteQueue};

/// Bytes of a block, and blocks of a measurement: 16 MiB each way.
const BLOCK_BYTES: usize = 1 << 20;
const BLOCKS: u64 = 16;
/// A slow disk is measured for at most this long each way.
const TIME_MAX: Duration = Duration::from_millis(150);
/// The file that is written, and then removed.
const NAME: &str = "blocks/measured";

/// How blocks are to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DiskChoice {
    /// Whichever a short measurement finds faster.
    #[default]
    Auto,
    /// Bypassing the page cache (`O_DIRECT`), if the file system supports that.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// How blocks are written, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskReport {
    /// Whether writes bypass the page cache.
    pub direct: bool,
    /// Bytes per second measured bypassing and through the page cache, sync included; `None` if not
    /// measured.
    pub measured: Option<[u64; 2]>,
    /// Blocks in flight at a time.
    pub in_flight: usize,
    /// Why the kernel refuses io_uring, if it does.
    pub no_uring: Option<String>,
}

impl fmt::Display for DiskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.direct {
            "blocks are written directly to the disk (O_DIRECT)"
        } else {
            "blocks are written through the page cache"
        })?;
        match &self.no_uring {
            None => write!(f, " by io_uring, {} at a time", self.in_flight)?,
            Some(why) => write!(
                f,
                " one after another, since the kernel refuses io_uring: {why}"
            )?,
        }
        if let Some([direct, buffered]) = self.measured {
            let mega = |bytes: u64| bytes / 1_000_000;
            write!(
                f,
                "; measured {} MB/s directly, {} MB/s through the page cache",
                mega(direct),
                mega(buffered)
            )?;
        }
        Ok(())
    }
}

impl RealDisk {
    /// Chooses how blocks are written from now on. [`DiskChoice::Auto`] writes 16 MiB each way, for
    /// 150 ms each at most, and removes them.
    ///
    /// # Errors
    ///
    /// If `Direct` is requested and the file system does not support direct writes.
    pub fn choose(&mut self, choice: DiskChoice) -> io::Result<DiskReport> {
        let has_direct = self.has_direct_writes();
        let mut measured = None;
        self.direct = match choice {
            DiskChoice::Buffered => false,
            DiskChoice::Direct => {
                has_direct?;
                true
            }
            DiskChoice::Auto => {
                if has_direct.is_ok() {
                    measured = self.measure();
                }
                // If about as fast, bypass the page cache: copying costs CPU time, and what others
                // have in the cache is worth something too.
                let buffered_wins = |[direct, buffered]: [u64; 2]| buffered > direct / 4 * 5;
                has_direct.is_ok() && !measured.is_some_and(buffered_wins)
            }
        };
        let queue = WriteQueue::<Vec<u8>>::new(self.in_flight());
        Ok(DiskReport {
            direct: self.direct,
            measured,
            in_flight: self.in_flight(),
            no_uring: queue.refused().map(ToString::to_string),
        })
    }

    fn has_direct_writes(&self) -> io::Result<()> {
        self.remove(NAME)?;
        self.create(NAME)?;
        let mut options = std::fs::OpenOptions::new();
        let direct =
            std::os::unix::fs::OpenOptionsExt::custom_flags(options.write(true), libc::O_DIRECT);
        let opened = direct.open(self.path(NAME));
        self.remove(NAME)?;
        opened.map(drop).map_err(|_| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "the file system does not support direct writes",
            )
        })
    }

    /// Bytes per second bypassing and through the page cache; `None` if it cannot be measured, as
    /// on a full disk.
    fn measure(&self) -> Option<[u64; 2]> {
        let speed = |direct: bool| {
            let disk = Self {
                direct,
                ..self.clone()
            };
            let speed = disk.speed();
            // A leftover file does no harm.
            let _ = disk.remove(NAME);
            speed.ok()
        };
        Some([speed(true)?, speed(false)?])
    }

    fn speed(&self) -> io::Result<u64> {
        let mut file = self.create_for_blocks(NAME)?;
        let mut queue = WriteQueue::new(self.in_flight());
        let mut written = 0;
        let begun = Instant::now();
        let mut free: Vec<OwnBlock> = (0..self.in_flight()).map(|_| filled()).collect();
        while written < BLOCKS && begun.elapsed() < TIME_MAX {
            let block = match free.pop() {
                Some(block) => block,
                None => match queue.complete() {
                    Some((block, outcome)) => outcome.map(|()| block)?,
                    None => break,
                },
            };
            queue.submit(file.as_mut(), block, written * BLOCK_BYTES as u64);
            written += 1;
        }
        while let Some((_, outcome)) = queue.complete() {
            outcome?;
        }
        file.sync()?;
        let bytes = u128::from(written) * BLOCK_BYTES as u128;
        let ns = begun.elapsed().as_nanos().max(1);
        let rate = u64::try_from(bytes * 1_000_000_000 / ns);
        Ok(rate.expect("16 MiB in a nanosecond would fit"))
    }
}

/// A block's worth of memory, aligned for direct writes.
fn filled() -> OwnBlock {
    let mut memory = AlignedBytes::zeroed(BLOCK_BYTES);
    memory.fill(0x5a);
    OwnBlock::new(memory, BLOCK_BYTES, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_followed_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = RealDisk::create_dir(dir.path()).unwrap();
        let buffered = disk.choose(DiskChoice::Buffered).unwrap();
        assert!(!buffered.direct && buffered.measured.is_none());
        let chosen = disk.choose(DiskChoice::Auto).unwrap();
        if let Some([direct, through]) = chosen.measured {
            assert_eq!(chosen.direct, through <= direct / 4 * 5);
        }
        assert!(chosen.to_string().contains("page cache"));
        assert!(disk.list("blocks").unwrap().is_empty());
    }
}
