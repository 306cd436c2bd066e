//! The role that receives vectors: by UDP, from a ring in shared memory, or from a file, put together into
//! records of longer intervals (`reader`). A [`VectorReader`] also works in another role's thread, and gives it the
//! records.

mod budget;
mod datagrams;
mod directory;
mod frames;
mod inbox;
mod outputs;
mod parts;
mod reader;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use strata_gpv::agent::ReassemblyOptions;
use strata_role::sandbox::{Reach, confine, unconfined};
use strata_role::{Handle, Spec, Tell};
use strata_store::Sources;

use self::outputs::Outputs;
use crate::error::{Result, VectorError};
use crate::form::Form;
use crate::rotation::Rotation;

pub use self::datagrams::Datagrams;
pub use self::directory::VectorDirectory;
pub use self::inbox::{GivenRecord, Received, Requests, Sender};
pub use self::outputs::{RecordFileSpec, RecordsSpec, Sent};
pub use self::reader::{ListenSpec, RecordOutput, VectorReader, VectorSource, VectorsRead};

/// An agent. Memory: for each sender, 329 bytes per flow, and 28 bytes per packet of the flow's record.
#[derive(Clone, Debug)]
pub struct VectorAgentSpec {
    /// Where vectors come from.
    pub source: VectorSource,
    /// The form that they have.
    pub form: Form,
    /// The size of records, and the number of flows per sender that are put together at the same time.
    pub reassembly: ReassemblyOptions,
    /// Maximum number of senders whose vectors are accepted at the same time.
    pub senders_max: usize,
    /// The agent ends after this number of datagrams.
    pub datagrams_max: Option<u64>,
    /// Where records go.
    pub records: RecordsSpec,
    /// Whether the process gives up the privileges that it no longer needs once the source is open.
    pub sandboxed: bool,
}

/// What an agent did.
#[derive(Debug)]
pub struct VectorAgentOutcome {
    /// What was read.
    pub read: VectorsRead,
    /// Vectors and datagrams that were forwarded, if a destination was given.
    pub sent: Option<Sent>,
    /// Why the agent ended before its source did, if so. Vectors received before are written.
    pub failure: Option<VectorError>,
}

impl Spec for VectorAgentSpec {
    type Running = ();
    type Outcome = VectorAgentOutcome;
    type Error = VectorError;
    const THREAD: &'static str = "vectors";

    fn start(self, stop: Arc<AtomicBool>, tell: Tell) -> Result<Handle<Self>> {
        let sources = Sources::default().files(self.source.files());
        let rotation = self.rotation()?;
        if let (Some(file), None) = (&self.records.file, &rotation) {
            // The names of files that follow each other are known later.
            sources.check(&file.path)?;
        }
        let reader =
            VectorReader::open(&self.source, self.form, self.reassembly, self.senders_max)?;
        self.confine(&tell)?;
        let mut outputs = Outputs::open(&self.records, rotation, &sources, &tell)?;
        if let Some(notice) = reader.notice()? {
            tell(&notice);
        }
        let reader = reader.at_most(self.datagrams_max);
        let stopped = Arc::clone(&stop);
        Handle::run((), stop, move || {
            let (read, ended) = reader.read(&mut outputs, &stopped, &tell);
            let (sent, failure) = match (outputs.finish(), ended) {
                (Ok(sent), ended) => (sent, ended.err()),
                (Err(error), Ok(())) | (Err(_), Err(error)) => return Err(error),
            };
            Ok(VectorAgentOutcome {
                read,
                sent,
                failure,
            })
        })
    }
}

impl VectorAgentSpec {
    fn rotation(&self) -> Result<Option<Rotation>> {
        let Some(file) = &self.records.file else {
            return Ok(None);
        };
        let rotation = file.rotation.map(|spec| Rotation::new(&file.path, spec));
        rotation.transpose()
    }

    /// Drops what is not needed any more: what vectors come from is open.
    fn confine(&self, tell: &Tell) -> Result<()> {
        if !self.sandboxed {
            unconfined();
            return Ok(());
        }
        let mut reach = Reach::default();
        if let VectorSource::Directory { path, .. } = &self.source {
            reach.read.push(path.clone());
        }
        if let Some(file) = &self.records.file {
            reach.makes(&file.path);
        }
        Ok(confine(&reach, tell)?)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use strata_gpv::format::datagram::{DatagramWriter, LEN_USUAL};
    use strata_gpv::{Columns, Full, Key, Reason, Vector};
    use strata_role::Notice;
    use strata_wire::{AddressFamily, Endpoint};

    use super::*;

    /// Datagrams with `vectors` vectors of 3 packets, and the one that states their number.
    fn datagrams(vectors: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = DatagramWriter::new(7, Columns::ALL, LEN_USUAL);
        let tuples = [Full {
            size: 60,
            ..Full::default()
        }; 3];
        for port in 0..vectors {
            let end = |address| Endpoint { address, port };
            let vector = Vector {
                key: Key::new(AddressFamily::Ipv4, 17, end(1), end(2), 0),
                start_ns: u64::from(port),
                pieces: [&tuples, &[]],
                reason: Reason::Full,
                saturated: false,
                slot: u32::from(port),
            };
            let put = writer.put(&vector, |datagram| bytes.extend_from_slice(datagram));
            put.unwrap();
        }
        writer.finish(|datagram| bytes.extend_from_slice(datagram));
        writer.end(|datagram| bytes.extend_from_slice(datagram));
        bytes
    }

    fn outcome(dir: &Path, source: PathBuf) -> Result<VectorAgentOutcome> {
        let spec = VectorAgentSpec {
            source: VectorSource::File(source),
            form: Form::Strata,
            reassembly: ReassemblyOptions::default(),
            senders_max: 1,
            datagrams_max: None,
            records: RecordsSpec {
                file: Some(RecordFileSpec {
                    path: dir.join("records.parquet"),
                    rotation: None,
                    save_every: Duration::from_secs(10),
                }),
                to: None,
            },
            sandboxed: false,
        };
        strata_role::start(spec, Arc::default(), Arc::new(|_: &Notice| ()))?.wait()
    }

    #[test]
    fn what_came_before_something_unreadable_is_kept_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("vectors.gpv");
        let whole = datagrams(40);
        for (bytes, is_whole) in [
            (whole.clone(), true),
            ([&whole[..], &[7; 30]].concat(), false),
        ] {
            std::fs::write(&source, bytes).unwrap();
            let outcome = outcome(dir.path(), source.clone()).unwrap();
            let received = outcome.read.received;
            assert_eq!((received.vectors, received.packets), (40, 120));
            assert_eq!((received.records, received.lost), (40, 0));
            match outcome.failure {
                None => assert!(is_whole),
                Some(VectorError::NoVectors { at, .. }) => {
                    assert!(!is_whole && at == whole.len() as u64, "{at}");
                }
                Some(other) => panic!("{other}"),
            }
            std::fs::remove_file(dir.path().join("records.parquet")).unwrap();
        }
    }

    /// One that was killed has no number of its vectors.
    #[test]
    fn runs_follow_one_another() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("vectors.gpv");
        let run = datagrams(40);
        let killed = &run[..run.len() - 24];
        for (bytes, unended) in [
            ([&run[..], &run].concat(), 0),
            ([killed, &run].concat(), 1),
            ([&run[..], killed].concat(), 1),
        ] {
            std::fs::write(&source, bytes).unwrap();
            let received = outcome(dir.path(), source.clone()).unwrap().read.received;
            assert_eq!((received.vectors, received.packets), (80, 240));
            assert_eq!(
                (received.lost, received.stale, received.unended),
                (0, 0, unended)
            );
            std::fs::remove_file(dir.path().join("records.parquet")).unwrap();
        }
    }

    #[test]
    fn a_source_that_is_not_there_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let error = outcome(dir.path(), missing.clone()).unwrap_err();
        assert!(matches!(error, VectorError::At { .. }), "{error:?}");
        assert!(error.to_string().contains("cannot read"), "{error}");
        // Its own input is not written over.
        let records = dir.path().join("records.parquet");
        assert!(!records.exists());
        std::fs::write(&records, datagrams(1)).unwrap();
        let error = outcome(dir.path(), records).unwrap_err();
        assert!(matches!(error, VectorError::Output(_)), "{error:?}");
    }
}
