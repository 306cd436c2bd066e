//! Every capture in the data folder is read to its end or refused with an error that says where;
//! which ones, and what was odd, is a snapshot.

use std::fmt::Write;

use strata_capture::InputOptions;

use crate::common::{check_snapshot, data_dir, format_files, read, read_all};

#[test]
fn every_file_is_read_or_refused() {
    let root = data_dir().join("formats").display().to_string();
    let (mut refused, mut warned) = (String::new(), String::new());
    let (mut files, mut packets) = (0, 0);
    for (name, path) in format_files() {
        let reading = read(&path);
        files += 1;
        packets += reading.packets().count();
        let relative = |text: String| text.replace(&format!("{root}/"), "");
        if let Some(error) = &reading.error {
            let place = error.place().unwrap_or_else(|| panic!("{name}: {error}"));
            assert_eq!(place.path, path);
            let count = reading.packets().count();
            writeln!(
                refused,
                "{} [{count} packets before]",
                relative(error.to_string())
            )
            .unwrap();
        }
        for warning in &reading.warnings {
            let count = reading.packets().count();
            writeln!(
                warned,
                "{} [{count} packets in all]",
                relative(warning.to_string())
            )
            .unwrap();
        }
    }
    println!("{files} files, {packets} packets");
    check_snapshot("refused.txt", &refused);
    check_snapshot("warnings.txt", &warned);
}

/// Small windows: every packet and block crosses an edge, and some do not fit. Read ahead by a
/// thread or not, copied or not.
#[test]
fn the_window_size_changes_nothing() {
    let windows = [(0, false), (0, true), (256 << 10, true), (1 << 20, true)];
    let copied = windows.map(|window| (window, u64::MAX));
    let viewed = windows.map(|window| (window, 0));
    for ((window_bytes, read_ahead), viewed_bytes_min) in copied.into_iter().chain(viewed) {
        let mut options = InputOptions::default();
        options.window_bytes = window_bytes;
        options.read_ahead = read_ahead;
        options.viewed_bytes_min = viewed_bytes_min;
        for (name, path) in format_files() {
            let (a, b) = (read(&path), read_all(std::slice::from_ref(&path), &options));
            assert_eq!(a.items, b.items, "{name}");
            assert_eq!(a.warnings, b.warnings, "{name}");
            assert_eq!(
                a.error.map(|error| error.to_string()),
                b.error.map(|error| error.to_string()),
                "{name}"
            );
        }
    }
}
