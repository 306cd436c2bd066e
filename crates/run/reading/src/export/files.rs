//! The capture files of an export: one, or several that follow one another.

use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::Result;
use strata_anonymize::Anonymizer;
use strata_query::{ExportOptions, FileFormat, LoggedPacket, MergedExport, MergedMetadata};
use strata_store::Sources;
use strata_terminal::output::{Content, Output};
use strata_terminal::selection::Logs;
use strata_terminal::text;
use tracing::info;

use super::anonymized::{Anonymized, AnonymizedFile};
use super::command::Command;
use super::rotation::{Rotation, exists};

/// What files have of packets.
pub(super) enum Form {
    Known(Known),
    Anonymized(Box<Anonymized>),
}

/// Packets as they are.
pub(super) struct Known {
    metadata: MergedMetadata,
    /// The logs, as the user named them.
    names: Vec<String>,
    comments: bool,
    tls_keys: Vec<u8>,
}

impl Form {
    /// Packets of these logs as they are, with comments, and with these TLS secrets.
    pub(super) fn known(logs: &Logs, comments: bool, tls_keys: Vec<u8>) -> Result<Self> {
        let names = logs.all().map(|(dir, _)| dir.display().to_string());
        Ok(Self::Known(Known {
            names: names.collect(),
            metadata: MergedMetadata::of(logs.all().map(|(_, log)| log))?,
            comments,
            tls_keys,
        }))
    }

    pub(super) fn anonymized(by: Anonymizer) -> Self {
        Self::Anonymized(Box::new(Anonymized::new(by)))
    }
}

/// Where files are written.
pub(super) enum Target {
    /// To this one.
    One(Output),
    /// To one after another, except to these.
    Rotated(Box<Rotation>, Sources, Option<Command>),
}

/// What was written.
#[derive(Debug, Default)]
pub(super) struct FilesWritten {
    /// Files that followed one another; `None` if there is only one.
    pub(super) files: Option<u64>,
    /// Commands that failed; `None` without any.
    pub(super) failed_commands: Option<u64>,
    /// Packets of which --anonymize left no byte.
    pub(super) emptied: Option<u64>,
}

/// Writes packets to files.
pub(super) struct Files {
    form: Form,
    format: FileFormat,
    current: Option<OpenFile>,
    rotated: Option<Rotated>,
}

/// Files that follow one another.
struct Rotated {
    rotation: Rotation,
    sources: Sources,
    command: Option<Command>,
    /// The current file.
    path: PathBuf,
    complete: u64,
}

/// The file that is being written.
struct OpenFile {
    writer: Writer,
    bytes: Rc<Cell<u64>>,
}

enum Writer {
    Known(Box<MergedExport<'static, Counted>>),
    Anonymized(Box<AnonymizedFile<Counted>>),
}

/// An output, and what was written to it.
struct Counted {
    output: Output,
    bytes: Rc<Cell<u64>>,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.bytes
            .set(self.bytes.get().saturating_add(written as u64));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl OpenFile {
    fn begin(output: Output, form: &Form, format: FileFormat) -> Result<Self> {
        let bytes = Rc::new(Cell::new(0));
        let counted = Counted {
            output,
            bytes: Rc::clone(&bytes),
        };
        let writer = match form {
            Form::Known(known) => {
                let options = ExportOptions {
                    comments: known.comments,
                    tls_keys: known.tls_keys.clone(),
                    ..ExportOptions::default()
                };
                let file = MergedExport::new(&known.metadata, counted, format, options)?;
                Writer::Known(Box::new(file))
            }
            Form::Anonymized(_) => {
                Writer::Anonymized(Box::new(AnonymizedFile::new(counted, format)?))
            }
        };
        Ok(Self { writer, bytes })
    }

    fn finish(self) -> Result<()> {
        let counted = match self.writer {
            Writer::Known(file) => file.finish()?,
            Writer::Anonymized(file) => file.finish()?,
        };
        counted.output.finish()
    }
}

impl Files {
    /// A single file is begun at once, others with their first packet.
    pub(super) fn new(target: Target, form: Form, format: FileFormat) -> Result<Self> {
        let (current, rotated) = match target {
            Target::One(output) => (Some(OpenFile::begin(output, &form, format)?), None),
            Target::Rotated(rotation, sources, command) => {
                let rotated = Rotated {
                    rotation: *rotation,
                    sources,
                    command,
                    path: PathBuf::new(),
                    complete: 0,
                };
                (None, Some(rotated))
            }
        };
        Ok(Self {
            form,
            format,
            current,
            rotated,
        })
    }

    /// Writes a packet of the log with this number.
    pub(super) fn packet(&mut self, log: usize, packet: &LoggedPacket<'_>) -> Result<()> {
        let mut file = self.file(packet)?;
        match (&mut self.form, &mut file.writer) {
            (Form::Known(known), Writer::Known(file)) => {
                file.packet((u32::try_from(log)?, &known.names[log]), packet)?;
            }
            (Form::Anonymized(form), Writer::Anonymized(file)) => form.packet(file, log, packet)?,
            _ => unreachable!("all files have the same form"),
        }
        self.current = Some(file);
        Ok(())
    }

    /// The file for a packet, which is taken out.
    fn file(&mut self, packet: &LoggedPacket<'_>) -> Result<OpenFile> {
        let current = self.current.take();
        let Some(rotated) = &mut self.rotated else {
            return Ok(current.expect("a single file is open"));
        };
        let bytes = current.as_ref().map_or(0, |file| file.bytes.get());
        let ts_ns = packet.has_timestamp.then_some(packet.ts_ns);
        match (rotated.rotation.next(ts_ns, bytes)?, current) {
            (None, Some(current)) => Ok(current),
            (None, None) => unreachable!("the first packet begins a file"),
            (Some(path), current) => {
                if let Some(current) = current {
                    rotated.complete(current)?;
                }
                let output = rotated.open(path)?;
                OpenFile::begin(output, &self.form, self.format)
            }
        }
    }

    /// Ends the last file.
    pub(super) fn finish(self) -> Result<FilesWritten> {
        let mut written = FilesWritten::default();
        match (self.rotated, self.current) {
            (None, None) => unreachable!("a single file is open"),
            (None, Some(current)) => current.finish()?,
            (Some(mut rotated), current) => {
                if let Some(current) = current {
                    rotated.complete(current)?;
                }
                written.files = Some(rotated.complete);
                written.failed_commands = rotated.command.map(Command::finish);
                say_late(rotated.rotation.late);
            }
        }
        if let Form::Anonymized(form) = &self.form {
            written.emptied = Some(form.say_emptied());
        }
        Ok(written)
    }
}

impl Rotated {
    fn open(&mut self, path: PathBuf) -> Result<Output> {
        if fs::symlink_metadata(&path).is_ok() {
            return Err(exists(&path));
        }
        let output = Output::create(&path, Content::Binary, &self.sources)?;
        self.path = path;
        Ok(output)
    }

    /// Ends the current file.
    fn complete(&mut self, file: OpenFile) -> Result<()> {
        file.finish()?;
        self.complete = self.complete.saturating_add(1);
        if let Some(command) = &mut self.command {
            command.start(&self.path);
        }
        Ok(())
    }
}

fn say_late(packets: u64) {
    if packets > 0 {
        info!(
            "-G: {} written to the file of the next period, because packets of that period \
             arrived first",
            text::count_of(packets, "packet")
        );
    }
}
