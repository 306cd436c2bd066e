//! The compacted files of a table as an object store, from which DataFusion reads: every byte compared with
//! its checksum, decrypted, and wherever it is stored.
//!
//! DataFusion is not given the paths of files. It would read them without their checksums, and take `[`, `*` and `?`
//! in them for patterns.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use datafusion::common::DataFusionError;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use strata_archive::parts::name_of;
use strata_store::{Damage, DiskFile, FileKind, Log};

const NAME: &str = "strata";
/// Open files that wait for their next reader, at most: a log may have more files than a process may open.
const IDLE_MAX: usize = 128;
/// Files opened at a time before a query: in an object store, each takes a while.
const OPENING_MAX: usize = 32;

/// A file that cannot be read.
#[derive(Debug)]
pub(crate) struct Unreadable {
    /// As shown in messages.
    file: String,
    error: io::Error,
}

impl Unreadable {
    /// Whether its bytes are not those that were written.
    fn is_damage(&self) -> bool {
        use io::ErrorKind::{InvalidData, UnexpectedEof};
        matches!(self.error.kind(), InvalidData | UnexpectedEof)
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, error } = self;
        match self.is_damage() {
            true => write!(
                f,
                "{file}: damaged: {error}: restore the file, or read the rest of the log with `strata export`"
            ),
            false => write!(f, "{file}: {error}"),
        }
    }
}

impl std::error::Error for Unreadable {}

impl From<Unreadable> for Error {
    fn from(unreadable: Unreadable) -> Self {
        Self::Generic {
            store: NAME,
            source: Box::new(unreadable),
        }
    }
}

/// The compacted files of a table.
pub(crate) struct Files {
    log: Arc<Log>,
    kind: FileKind,
    /// Indexes of the parts of the log that have one.
    parts: Vec<usize>,
    /// The bytes of each, decrypted, once it was opened.
    lens: Vec<OnceLock<u64>>,
    /// Open files, each with its index, that are not being read. A file is read by one thread at a time, and opened
    /// again for a second one.
    idle: Mutex<VecDeque<(usize, Box<dyn DiskFile>)>>,
}

impl Files {
    pub(crate) fn new(log: Arc<Log>, kind: FileKind) -> Self {
        let all = log.archive().parts.iter().enumerate();
        let has = all.filter(|(_, part)| part.file(kind).is_some());
        let parts: Vec<usize> = has.map(|(part, _)| part).collect();
        Self {
            lens: parts.iter().map(|_| OnceLock::new()).collect(),
            idle: Mutex::default(),
            parts,
            kind,
            log,
        }
    }

    /// Opens every file; returns the indexes of those that are there, and those that are missing.
    ///
    /// # Errors
    ///
    /// The first file, in order, that cannot be opened or does not have its size.
    pub(crate) async fn look(
        self: &Arc<Self>,
    ) -> Result<(Vec<usize>, Vec<Damage>), DataFusionError> {
        let opened = stream::iter(0..self.parts.len()).map(|at| {
            let files = Arc::clone(self);
            async move {
                let opening = tokio::task::spawn_blocking(move || {
                    let opened = files.opened(at);
                    opened.map(|file| files.rest(at, file))
                });
                let opened = opening.await;
                opened
                    .map(|opened| (at, opened))
                    .map_err(|error| DataFusionError::External(Box::new(error)))
            }
        });
        let opened: Vec<(usize, Result<(), Unreadable>)> =
            opened.buffered(OPENING_MAX).try_collect().await?;
        let (mut there, mut missing) = (Vec::new(), Vec::new());
        for (at, opened) in opened {
            match opened {
                Ok(()) => there.push(at),
                Err(lost) if lost.error.kind() == io::ErrorKind::NotFound => {
                    let part = &self.log.archive().parts[self.parts[at]];
                    missing.push(Damage::missing(lost.file, part.id, part.packets));
                }
                Err(error) => return Err(DataFusionError::External(Box::new(error))),
            }
        }
        Ok((there, missing))
    }

    /// A name of a file. Other tables have other names, since DataFusion keeps footers by name alone.
    pub(crate) fn name(&self, at: usize) -> String {
        format!("{}-{at}.parquet", self.kind.dir())
    }

    fn at(&self, location: &Path) -> Result<usize> {
        let name = location.as_ref().strip_suffix(".parquet");
        let number = name.and_then(|name| name.strip_prefix(self.kind.dir())?.strip_prefix('-'));
        let at = number.and_then(|number| number.parse().ok());
        at.filter(|at| *at < self.parts.len())
            .ok_or_else(|| Error::NotFound {
                path: location.to_string(),
                source: "no file of the log".into(),
            })
    }

    /// An open file, which no other thread reads.
    fn opened(&self, at: usize) -> Result<Box<dyn DiskFile>, Unreadable> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = idle.iter().rposition(|(of, _)| *of == at)
            && let Some((_, file)) = idle.remove(place)
        {
            return Ok(file);
        }
        drop(idle);
        let part = &self.log.archive().parts[self.parts[at]];
        let listed = part
            .file(self.kind)
            .expect("parts without one are not here");
        let disk = self.log.disk();
        let open = || {
            let name = name_of(disk.as_ref(), part, listed);
            let opened = disk.open(&name, false);
            let opened = opened.and_then(|file| Ok((file.size()?, file)));
            opened.map_err(|error| Unreadable {
                file: disk.display(&name),
                error,
            })
        };
        // A file that is staged may get its name at this moment.
        let (len, file) = open().or_else(|lost| match lost.error.kind() {
            io::ErrorKind::NotFound => open(),
            _ => Err(lost),
        })?;
        self.lens[at].get_or_init(|| len);
        Ok(file)
    }

    /// Keeps a file open for its next reader.
    fn rest(&self, at: usize, file: Box<dyn DiskFile>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push_back((at, file));
        let closed = match idle.len() > IDLE_MAX {
            true => idle.pop_front(),
            false => None,
        };
        // Without it, the others wait until the file is closed.
        drop(idle);
        drop(closed);
    }

    fn len(&self, at: usize) -> Result<u64, Unreadable> {
        if let Some(len) = self.lens[at].get() {
            return Ok(*len);
        }
        let file = self.opened(at)?;
        self.rest(at, file);
        Ok(*self.lens[at].get().expect("it was opened"))
    }

    /// Reads the bytes of a range.
    fn read(&self, at: usize, range: &Range<u64>) -> Result<Vec<u8>, Unreadable> {
        let file = self.opened(at)?;
        let read = || -> io::Result<Vec<u8>> {
            let past = || io::Error::from(io::ErrorKind::UnexpectedEof);
            // Ranges are what a file says of itself.
            let fits = range.end <= *self.lens[at].get().ok_or_else(past)?;
            let len = range.end.checked_sub(range.start).filter(|_| fits);
            let len = usize::try_from(len.ok_or_else(past)?).map_err(|_| past())?;
            let mut bytes = vec![0; len];
            let mut done = 0_usize;
            while done < len {
                let from = range.start.saturating_add(done as u64);
                match file.read_at(&mut bytes[done..], from)? {
                    0 => return Err(past()),
                    read => done = done.saturating_add(read),
                }
            }
            Ok(bytes)
        };
        let bytes = read().map_err(|error| {
            let part = &self.log.archive().parts[self.parts[at]];
            let name = part
                .file(self.kind)
                .map_or("", |listed| listed.name.as_str());
            Unreadable {
                file: self.log.disk().display(name),
                error,
            }
        })?;
        self.rest(at, file);
        Ok(bytes)
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// The files of a table, for DataFusion.
pub(crate) struct Store(pub(crate) Arc<Files>);

fn read_only() -> Error {
    Error::NotSupported {
        source: "a log is only read here".into(),
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

#[async_trait]
impl ObjectStore for Store {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (files, at) = (Arc::clone(&self.0), self.0.at(location)?);
        let location = location.clone();
        let read = tokio::task::spawn_blocking(move || {
            let len = files.len(at)?;
            let range = match &options.range {
                Some(range) => range.as_range(len).map_err(|error| Error::Generic {
                    store: NAME,
                    source: Box::new(error),
                })?,
                None => 0..len,
            };
            let bytes = if options.head {
                Vec::new()
            } else {
                files.read(at, &range)?
            };
            let payload = stream::once(async move { Ok(bytes.into()) }).boxed();
            Ok(GetResult {
                payload: GetResultPayload::Stream(payload),
                meta: ObjectMeta {
                    location,
                    last_modified: Default::default(),
                    size: len,
                    e_tag: None,
                    version: None,
                },
                range,
                attributes: Default::default(),
            })
        });
        read.await.map_err(|source| Error::JoinError { source })?
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(read_only())
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(read_only())
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::once(async { Err(read_only()) }).boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        // Files are requested by name.
        stream::empty().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(read_only())
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(read_only())
    }
}
