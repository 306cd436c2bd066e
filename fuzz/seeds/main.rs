//! Makes the seeds: `seeds CAPTURES LOGS CORPUS`, run by `run.sh`.
//!
//! - `CAPTURES`: a folder of capture files; short ones become seeds of `pcap` and
//!   `pcapng`, their packets seeds of `dissect`;
//! - `LOGS`: a folder of logs, whose block files become seeds of `block`;
//! - `CORPUS`: where to, a folder per target.
//!
//! Models and filter expressions come from the source tree, which is the current
//! folder's parent.

mod settings;
mod systems;
mod traffic;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A longer input is slow to mutate.
const BYTES_MAX: usize = 4096;
/// Packets taken of one capture.
const PACKETS_MAX: usize = 8;

fn main() -> io::Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [captures, logs, corpus] = arguments.as_slice() else {
        return Err(io::Error::other("usage: seeds CAPTURES LOGS CORPUS"));
    };
    let source = Path::new("..");
    let captures = files_below(captures)?;
    let packets = traffic::of_captures(&captures, corpus)?;
    traffic::of_what_is_carried(corpus)?;
    settings::of_filters(source, &packets, corpus)?;
    settings::of_models(source, corpus)?;
    settings::of_labels(corpus)?;
    traffic::of_names(corpus)?;
    settings::of_policies(corpus)?;
    traffic::of_int(corpus)?;
    settings::of_configuration(corpus)?;
    settings::of_alerts(corpus)?;
    traffic::of_the_wire(&packets, corpus)?;
    systems::of_vectors(&captures, corpus)?;
    systems::of_export(&captures, corpus)?;
    systems::of_streams(corpus)?;
    systems::of_logs(corpus)?;
    systems::of_telemetry(corpus)?;
    for file in files_below(logs)? {
        if file
            .parent()
            .is_some_and(|folder| folder.ends_with("blocks"))
        {
            traffic::of_block_file(&fs::read(&file)?, corpus)?;
        }
    }
    Ok(())
}

fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Writes a seed, by the checksum of its content: the same one once.
fn seed(corpus: &Path, target: &str, content: &[u8]) -> io::Result<()> {
    let folder = corpus.join(target);
    fs::create_dir_all(&folder)?;
    let name = format!("seed-{:08x}-{}", crc32c::crc32c(content), content.len());
    fs::write(folder.join(name), content)
}
