//! The files of a log as an object store, from which DataFusion reads: decrypted, and wherever they
//! are stored.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use futures::stream::{self, BoxStream, StreamExt};
use strata_store::{Disk, DiskFile};

const NAME: &str = "strata";

/// Files by number: `0.parquet` is the first.
pub(crate) struct Files(Vec<Arc<File>>);

struct File {
    disk: Arc<dyn Disk>,
    name: String,
    open: Mutex<Option<Open>>,
}

/// Read by one thread at a time.
#[derive(Clone)]
struct Open {
    file: Arc<Mutex<Box<dyn DiskFile>>>,
    len: u64,
}

impl Files {
    pub(crate) fn new(files: Vec<(Arc<dyn Disk>, String)>) -> Self {
        let file = |(disk, name)| {
            let open = Mutex::default();
            Arc::new(File { disk, name, open })
        };
        Self(files.into_iter().map(file).collect())
    }

    /// Their URLs, in order, when registered under `base`.
    pub(crate) fn urls(&self, base: &str) -> Vec<String> {
        let numbers = 0..self.0.len();
        numbers.map(|at| format!("{base}/{at}.parquet")).collect()
    }

    fn file(&self, location: &Path) -> Option<Arc<File>> {
        let number: usize = location.as_ref().strip_suffix(".parquet")?.parse().ok()?;
        self.0.get(number).cloned()
    }
}

impl File {
    fn opened(&self) -> Result<Open> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = &*open {
            return Ok(open.clone());
        }
        let named = |error| failed(&self.disk.display(&self.name), error);
        let file = self.disk.open(&self.name, false).map_err(named)?;
        let len = file.size().map_err(named)?;
        let file = Arc::new(Mutex::new(file));
        Ok(open.insert(Open { file, len }).clone())
    }

    fn read(&self, range: &Range<u64>) -> Result<Vec<u8>> {
        let open = self.opened()?;
        let named = |error| failed(&self.disk.display(&self.name), error);
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len];
        let file = open.file.lock().unwrap_or_else(PoisonError::into_inner);
        let read = file.read_at(&mut bytes, range.start).map_err(named)?;
        bytes.truncate(read);
        Ok(bytes)
    }
}

fn failed(file: &str, error: std::io::Error) -> Error {
    Error::Generic {
        store: NAME,
        source: format!("{file}: {error}").into(),
    }
}

fn read_only() -> Error {
    Error::NotSupported {
        source: "a log is only read here".into(),
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

#[async_trait]
impl ObjectStore for Files {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let file = self.file(location).ok_or_else(|| Error::NotFound {
            path: location.to_string(),
            source: "no file of the log".into(),
        })?;
        let location = location.clone();
        let read = tokio::task::spawn_blocking(move || {
            let len = file.opened()?.len;
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
                file.read(&range)?
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
