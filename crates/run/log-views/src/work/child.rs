//! Programs that answer: what they write is bounded, they end with the request that waits for them,
//! and after a time.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use strata_wire::clamped;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

/// Maximum bytes of what a program says beside its answer.
const SAID_BYTES_MAX: u64 = 16 << 10;

/// What a program answered.
#[derive(Debug)]
pub struct Answered {
    /// What it wrote to standard output.
    pub output: Vec<u8>,
    /// Whether there was more.
    pub is_cut: bool,
    /// What it wrote to standard error.
    pub said: String,
    /// Whether it ended with status 0.
    pub succeeded: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum NoAnswer {
    /// It cannot be started.
    Start(io::Error),
    /// It took too long.
    Late(Duration),
}

/// Where programs are looked for.
fn search_path() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"))
}

/// A program by its name: beside this one, or in the path.
pub fn find(name: &str, beside: Option<&Path>) -> Option<PathBuf> {
    let path = search_path();
    let beside = beside.and_then(Path::parent).map(Path::to_owned);
    let places = beside.into_iter().chain(std::env::split_paths(&path));
    places
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Runs a program with this input and returns what it wrote, up to `bytes_max`. It is killed if the
/// answer is not awaited to its end.
///
/// # Errors
///
/// If it cannot be started, or takes longer than `after`.
pub async fn run(
    program: &Path,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    (input, bytes_max): (Vec<u8>, u64),
    after: Duration,
) -> Result<Answered, NoAnswer> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", search_path())
        .env("LC_ALL", "C.UTF-8")
        // No preferences or plugins of the user who started the server.
        .env("HOME", "/nonexistent")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(NoAnswer::Start)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err(NoAnswer::Start(io::Error::other("no pipes")));
    };
    let writes = async move {
        // It may have read enough.
        let _ = stdin.write_all(&input).await;
    };
    let reads = async move {
        let mut output = Vec::new();
        let read = stdout
            .take(bytes_max.saturating_add(1))
            .read_to_end(&mut output)
            .await;
        read.map(|_| output)
    };
    let listens = async move {
        let mut said = Vec::new();
        let _ = stderr.take(SAID_BYTES_MAX).read_to_end(&mut said).await;
        String::from_utf8_lossy(&said).into_owned()
    };
    let all = async {
        let ((), output, said) = tokio::join!(writes, reads, listens);
        let mut output = output?;
        let is_cut = output.len() as u64 > bytes_max;
        let succeeded = match is_cut {
            true => false,
            false => child.wait().await?.success(),
        };
        output.truncate(clamped(bytes_max));
        Ok::<_, io::Error>(Answered {
            output,
            is_cut,
            said,
            succeeded,
        })
    };
    match timeout(after, all).await {
        Ok(answered) => answered.map_err(NoAnswer::Start),
        Err(_) => Err(NoAnswer::Late(after)),
    }
}
