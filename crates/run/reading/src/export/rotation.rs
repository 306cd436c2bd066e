//! `-G` and `-C`: files that each hold a period of time, or are limited in size.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, Zoned};
use strata_terminal::log_options::rotate_bytes;
use strata_terminal::output::refuse;
use strata_terminal::text;

use super::command::Command;

/// Files of one export.
const FILES_MAX: usize = 100_000;

/// When a file is followed by another, and what is done with it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Rotation of -w")]
pub(super) struct RotateArgs {
    /// Rotate: write a file for each period of this many seconds of local time (TZ), by the times
    /// of packets. With 3600, each file begins on the hour (tcpdump counts from its start instead).
    /// The name needs a time format of strftime(3), such as %Y%m%d-%H%M, which becomes the time at
    /// which the period begins. Existing files are not replaced. For pcapng and pcap.
    #[arg(short = 'G', long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=604_800))]
    rotate_seconds: Option<u32>,

    /// Rotate: begin another file once the current one exceeds this size, in millions of bytes or
    /// with a unit (500MB, 2GiB), before compression. From the second file on, the name gets a
    /// number before its extension: out.pcapng, out.1.pcapng, out.2.pcapng. Existing files are not
    /// replaced. For pcapng and pcap.
    #[arg(short = 'C', long, value_name = "SIZE")]
    rotate_size: Option<String>,

    /// With -G or -C, run COMMAND FILE after each complete file, including the last one, as tcpdump
    /// does. There is no shell: COMMAND is the name or path of a program, without arguments. One
    /// command runs at a time, while the export continues. Its output goes to standard error. If a
    /// command fails, the export fails too, but only after everything is written.
    #[arg(short = 'z', long, value_name = "COMMAND")]
    postrotate_command: Option<PathBuf>,
}

impl RotateArgs {
    /// Whether there may be several files.
    pub(super) fn is_given(&self) -> bool {
        self.rotate_seconds.is_some() || self.rotate_size.is_some()
    }

    /// Whether any of these options was given.
    pub(super) fn any(&self) -> bool {
        self.is_given() || self.postrotate_command.is_some()
    }

    /// What follows from these options for a file with this name; `None` if there is only that file.
    pub(super) fn of(&self, write: &Path) -> Result<Option<(Rotation, Option<Command>)>> {
        if !self.is_given() {
            return match self.postrotate_command {
                None => Ok(None),
                Some(_) => Err(refuse("-z applies only to rotated files: add -G or -C")),
            };
        }
        if write.as_os_str() == "-" {
            return Err(refuse("-G and -C: rotated files need a name: -w FILE"));
        }
        let bytes_max = self.rotate_size.as_deref().map(rotate_bytes).transpose()?;
        if bytes_max == Some(0) {
            return Err(refuse("-C must be above 0"));
        }
        let command = self.postrotate_command.as_deref().map(Command::new);
        let rotation = Rotation::new(write, self.rotate_seconds, bytes_max, text::zone()?)?;
        Ok(Some((rotation, command.transpose()?)))
    }
}

/// A period of local time.
#[derive(Clone, Copy, Debug)]
struct Period {
    /// Periods from the start of 1970 by the local clock. 0 if files are not limited in time.
    number: i64,
    /// How far the local clock was ahead of UTC when a packet of it came.
    offset: Offset,
}

/// Which file comes after which.
#[derive(Debug)]
pub(super) struct Rotation {
    name: PathBuf,
    seconds: Option<u32>,
    bytes_max: Option<u64>,
    zone: TimeZone,
    /// That of the current file; `None` before the first one.
    current: Option<Period>,
    /// The second since 1970 that was looked up last.
    last: Option<(u64, Period)>,
    /// Names of files, each with the number that the next file of this name gets.
    names: HashMap<PathBuf, u32>,
    /// Packets that are in the file of the period after theirs.
    pub(super) late: u64,
}

impl Rotation {
    /// Fails if files of limited time would all have the same name.
    fn new(
        name: &Path,
        seconds: Option<u32>,
        bytes_max: Option<u64>,
        zone: TimeZone,
    ) -> Result<Self> {
        let rotation = Self {
            name: name.to_owned(),
            seconds,
            bytes_max,
            zone,
            current: None,
            last: None,
            names: HashMap::new(),
            late: 0,
        };
        if seconds.is_some() {
            let far_apart = [0, 40_000_000].map(Timestamp::from_second);
            let [one, other] = far_apart.map(|at| rotation.at(&at?.to_zoned(TimeZone::UTC)));
            if one? == other? {
                return Err(refuse(format!(
                    "-G: -w {} needs a time in its name, such as out-%Y%m%d-%H%M%S.pcapng",
                    name.display()
                )));
            }
        }
        Ok(rotation)
    }

    /// The name of the file that begins with a packet of this time (ns since 1970; `None` if it has none), if one does.
    /// `bytes` is the number of bytes in the current file.
    ///
    /// # Errors
    ///
    /// If there are too many files.
    pub(super) fn next(&mut self, ts_ns: Option<u64>, bytes: u64) -> Result<Option<PathBuf>> {
        let period = self.period(ts_ns)?;
        let Some(current) = self.current else {
            return self.begin(period).map(Some);
        };
        // Packets of several queues or interfaces may come a little late: no file is begun for each of them.
        let is_late = period.number.checked_add(1) == Some(current.number);
        let period = match is_late {
            true => current,
            false => period,
        };
        if is_late {
            self.late = self.late.saturating_add(1);
        }
        let is_full = self.bytes_max.is_some_and(|most| bytes > most);
        match period.number == current.number && !is_full {
            true => Ok(None),
            false => self.begin(period).map(Some),
        }
    }

    fn begin(&mut self, period: Period) -> Result<PathBuf> {
        ensure!(
            self.names.len() < FILES_MAX,
            "-G and -C: {FILES_MAX} files are written, which is the limit: give longer periods, or a larger size"
        );
        self.current = Some(period);
        let base = match self.seconds {
            None => self.name.clone(),
            Some(seconds) => self.at(&self.start(period, seconds)?)?,
        };
        Ok(self.unused(&base))
    }

    /// The period of a packet. One without a time belongs to the current file; if there is none, its time is 0, as
    /// everywhere.
    fn period(&mut self, ts_ns: Option<u64>) -> Result<Period> {
        let Some(seconds) = self.seconds else {
            return Ok(Period {
                number: 0,
                offset: Offset::UTC,
            });
        };
        let ts_ns = match (ts_ns, self.current) {
            (Some(ts_ns), _) => ts_ns,
            (None, Some(current)) => return Ok(current),
            (None, None) => 0,
        };
        let second = ts_ns / 1_000_000_000;
        match self.last {
            Some((last, period)) if last == second => Ok(period),
            _ => {
                let at = Timestamp::from_second(i64::try_from(second)?)?;
                let offset = self.zone.to_offset(at);
                let local = at.as_second().checked_add(offset.seconds().into());
                let local = local
                    .with_context(|| format!("-G: a packet's time ({at}) has no local time: leave the packet out (--from, --to)"))?;
                let period = Period {
                    number: local.div_euclid(seconds.into()),
                    offset,
                };
                self.last = Some((second, period));
                Ok(period)
            }
        }
    }

    /// When a period begins.
    fn start(&self, period: Period, seconds: u32) -> Result<Zoned> {
        let local = period.number.checked_mul(seconds.into());
        let local = local.and_then(|second| Timestamp::from_second(second).ok());
        let local = local.context(
            "-G: a file would begin before year -9999 or after 9999: give a shorter period",
        )?;
        let clock = local.to_zoned(TimeZone::UTC).datetime();
        // Where clocks are put back, a time comes twice, and where they are put forward, the period may begin by the
        // clock before.
        let at = period.offset.to_timestamp(clock)?;
        let at = at.to_zoned(self.zone.clone());
        match at.datetime() == clock {
            true => Ok(at),
            false => Ok(clock.to_zoned(self.zone.clone())?),
        }
    }

    /// The name at a time.
    fn at(&self, time: &Zoned) -> Result<PathBuf> {
        let name = self.name.display();
        let Some(text) = self.name.to_str() else {
            return Err(refuse(format!("-G: -w {name} is not UTF-8")));
        };
        let at = jiff::fmt::strtime::format(text, time);
        let at = at.map_err(|error| refuse(format!("-G: -w {name}: {error}")))?;
        Ok(at.into())
    }

    /// This name, or with a number if a file of this export has it.
    fn unused(&mut self, base: &Path) -> PathBuf {
        let mut name = base.to_owned();
        while self.names.contains_key(&name) {
            let number = self.names.entry(base.to_owned()).or_insert(0);
            *number = number.saturating_add(1);
            name = numbered(base, *number);
        }
        self.names.insert(name.clone(), 0);
        name
    }
}

/// The name with a number before its extension, which may be that of a compressed file.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let is_compression =
        |ending: &&OsStr| ending.eq_ignore_ascii_case("gz") || ending.eq_ignore_ascii_case("zst");
    let compression = path.extension().filter(is_compression);
    let inner = match compression {
        Some(_) => path.with_extension(""),
        None => path.to_owned(),
    };
    let mut name = inner.file_stem().map_or_else(OsString::new, OsString::from);
    name.push(format!(".{number}"));
    for ending in [inner.extension(), compression].into_iter().flatten() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}

/// The error for a file that is in the way of one of several.
pub(super) fn exists(path: &Path) -> anyhow::Error {
    anyhow!(
        "{}: this file exists already, and -G and -C do not replace files: move it away, or write to other names",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;

    fn rotation(name: &str, seconds: Option<u32>, bytes_max: Option<u64>, zone: &str) -> Rotation {
        let zone = TimeZone::posix(zone).unwrap();
        Rotation::new(Path::new(name), seconds, bytes_max, zone).unwrap()
    }

    fn ns(time: &str) -> u64 {
        let time: Timestamp = time.parse().unwrap();
        u64::try_from(time.as_nanosecond()).unwrap()
    }

    /// The names of the files that packets of these times begin.
    fn begun<'a>(rotation: &mut Rotation, times: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let next = |time: &str| rotation.next(Some(ns(time)), 1).unwrap();
        let names = times.into_iter().filter_map(next);
        names.map(|name| name.display().to_string()).collect()
    }

    #[test]
    fn files_begin_at_multiples_of_local_time() {
        let times = [
            "2026-03-01T10:59:59.999999999Z",
            "2026-03-01T11:00:00Z",
            "2026-03-01T11:29:59Z",
            "2026-03-01T11:30:00Z",
            "2026-03-02T00:00:00Z",
        ];
        let mut hours = rotation("d/%Y%m%d-%H%M.pcapng", Some(3600), None, "UTC0");
        let names = [
            "d/20260301-1000.pcapng",
            "d/20260301-1100.pcapng",
            "d/20260302-0000.pcapng",
        ];
        assert_eq!(begun(&mut hours, times), names);
        // Half an hour ahead.
        let mut hours = rotation("%H%M%z", Some(3600), None, "IST-5:30");
        assert_eq!(
            begun(&mut hours, times),
            ["1600+0530", "1700+0530", "0500+0530"]
        );
        let mut days = rotation("%d-%H", Some(86_400), None, "EST5");
        assert_eq!(begun(&mut days, times), ["01-00"]);
    }

    #[test]
    fn clocks_that_are_changed_change_no_day_and_repeat_minutes() {
        let zone = "CET-1CEST,M3.5.0,M10.5.0/3";
        let mut days = rotation("%F %z", Some(86_400), None, zone);
        let spring = [
            "2026-03-29T10:00:00Z",
            "2026-03-29T21:59:59Z",
            "2026-03-29T22:00:00Z",
        ];
        assert_eq!(
            begun(&mut days, spring),
            ["2026-03-29 +0100", "2026-03-30 +0200"]
        );
        let autumn = [
            "2026-10-25T00:59:00Z",
            "2026-10-25T01:00:00Z",
            "2026-10-25T01:59:00Z",
        ];
        let mut minutes = rotation("%H%M", Some(60), None, zone);
        assert_eq!(begun(&mut minutes, autumn), ["0259", "0200", "0259.1"]);
        // It is the same hour of the clock.
        let mut hours = rotation("%H", Some(3600), None, zone);
        assert_eq!(begun(&mut hours, autumn), ["02"]);
    }

    #[test]
    fn late_packets_stay_and_much_earlier_ones_have_a_file() {
        let mut hours = rotation("%H.pcap.gz", Some(3600), None, "UTC0");
        let mut next = |ts_ns: Option<u64>| {
            let name = hours.next(ts_ns, 1).unwrap();
            name.map(|name| name.display().to_string())
        };
        // Without a time and a file before it, a packet is of 1970.
        assert_eq!(next(None).as_deref(), Some("00.pcap.gz"));
        assert_eq!(next(Some(5 * HOUR_NS)).as_deref(), Some("05.pcap.gz"));
        assert_eq!(next(Some(5 * HOUR_NS - 1)), None);
        assert_eq!(next(None), None);
        assert_eq!(next(Some(3 * HOUR_NS)).as_deref(), Some("03.pcap.gz"));
        assert_eq!(next(Some(5 * HOUR_NS)).as_deref(), Some("05.1.pcap.gz"));
        assert_eq!(
            next(Some(5 * HOUR_NS + 24 * HOUR_NS)).as_deref(),
            Some("05.2.pcap.gz")
        );
        assert_eq!(hours.late, 1);
    }

    #[test]
    fn files_of_limited_size_have_numbers_and_no_two_the_same_name() {
        let mut both = rotation("%H.%M.pcapng", Some(60), Some(10), "UTC0");
        let mut next = |minute: u64, bytes: u64| {
            let name = both.next(Some(minute * 60_000_000_000), bytes).unwrap();
            name.map(|name| name.display().to_string())
        };
        assert_eq!(next(0, 0).as_deref(), Some("00.00.pcapng"));
        assert_eq!(next(0, 10), None);
        assert_eq!(next(0, 11).as_deref(), Some("00.00.1.pcapng"));
        assert_eq!(next(1, 5).as_deref(), Some("00.01.pcapng"));
        // Late, and the file is full.
        assert_eq!(next(0, 11).as_deref(), Some("00.01.1.pcapng"));
        let mut taken = rotation("1970%m", Some(60), None, "UTC0");
        taken.names.insert("197001".into(), 0);
        taken.names.insert("197001.1".into(), 0);
        let name = taken.next(Some(0), 0).unwrap().unwrap();
        assert_eq!(name, Path::new("197001.2"));
        let mut sizes = rotation("100%", None, Some(1), "UTC0");
        assert_eq!(sizes.next(None, 0).unwrap().unwrap(), Path::new("100%"));
        assert_eq!(sizes.next(Some(u64::MAX), 1).unwrap(), None);
        assert_eq!(
            sizes.next(Some(0), 2).unwrap().unwrap(),
            Path::new("100%.1")
        );
    }

    #[test]
    fn periods_of_all_times_there_are_have_names() {
        for zone in ["UTC0", "AAA24", "BBB-24"] {
            for seconds in [1, 604_800] {
                for ts_ns in [0, 1, u64::MAX] {
                    let mut all = rotation("%s", Some(seconds), None, zone);
                    let name = all.next(Some(ts_ns), 0).unwrap().unwrap();
                    let start: i64 = name.to_str().unwrap().parse().unwrap();
                    let second = i64::try_from(ts_ns / 1_000_000_000).unwrap();
                    assert!(
                        (0..i64::from(seconds)).contains(&(second - start)),
                        "{start}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_rotated_is_refused() {
        let args = |seconds, size: Option<&str>, command: Option<&str>| RotateArgs {
            rotate_seconds: seconds,
            rotate_size: size.map(str::to_owned),
            postrotate_command: command.map(PathBuf::from),
        };
        let refused = |args: RotateArgs, name: &str| {
            let error = args.of(Path::new(name)).expect_err("refused");
            error.to_string()
        };
        assert!(refused(args(None, None, Some("true")), "v").contains("-z applies"));
        assert!(refused(args(Some(5), None, None), "-").contains("-w FILE"));
        assert!(refused(args(Some(5), None, None), "v").contains("needs a time"));
        assert!(refused(args(Some(5), None, None), "v%").contains("-G"));
        assert!(refused(args(None, Some("0"), None), "v").contains("-C must be above 0"));
        assert!(refused(args(None, Some("1"), Some("")), "v").contains("-z"));
        assert!(args(None, None, None).of(Path::new("-")).unwrap().is_none());
    }
}
