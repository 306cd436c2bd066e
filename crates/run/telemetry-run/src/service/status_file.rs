//! `status.json`, written every second by a thread of its own: a disk may take seconds for it, and
//! neither reports nor packets wait for a disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};
use strata_role::{Notice, Result, RoleError, Tell};

use crate::store::{STATUS, replace};

/// The file.
#[derive(Debug)]
pub(crate) struct StatusFile {
    dir: PathBuf,
    writer: Option<Writer>,
}

#[derive(Debug)]
struct Writer {
    texts: SyncSender<String>,
    thread: JoinHandle<()>,
}

impl StatusFile {
    pub(crate) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            writer: None,
        }
    }

    /// Writes it for the first time: who cannot even do that does not begin. What goes wrong later is
    /// reported once, and the collector goes on.
    pub(crate) fn start(&mut self, text: &str, tell: &Tell) -> Result<()> {
        replace(&self.dir, STATUS, text, false)?;
        // One waits while another is written.
        let (texts, waiting) = mpsc::sync_channel(1);
        let (dir, tell) = (self.dir.clone(), Arc::clone(tell));
        let thread = thread::Builder::new()
            .name("strata-status".into())
            .spawn(move || write_all(&dir, &waiting, &tell))
            .map_err(RoleError::thread("writes status.json"))?;
        self.writer = Some(Writer { texts, thread });
        Ok(())
    }

    /// Has it written, unless two of them wait for the disk: there will be another in a second.
    pub(crate) fn write(&self, text: String) {
        if let Some(writer) = &self.writer {
            let _ = writer.texts.try_send(text);
        }
    }

    /// Has the last one written, and waits for that.
    pub(crate) fn finish(&mut self, text: String) {
        if let Some(Writer { texts, thread }) = self.writer.take() {
            // A thread that has panicked has said so.
            let _ = texts.send(text);
            drop(texts);
            let _ = thread.join();
        }
    }
}

/// Until nothing comes any more.
fn write_all(dir: &Path, texts: &Receiver<String>, tell: &Tell) {
    let mut problem = None;
    for text in texts {
        let failed = replace(dir, STATUS, &text, false).err();
        let failed = failed.map(|error| error.chain());
        if let Some(new) = failed.as_ref().filter(|_| failed != problem) {
            tell(&Notice::warning(format!(
                "{new}: `strata telemetry status` shows outdated counts until this is fixed"
            )));
        }
        problem = failed;
    }
}
