//! Objects as files: read at any offset, written once from start to end.

use std::env;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, ObjectStore, ObjectStoreExt, RetryConfig, WriteMultipart,
};
use strata_store::DiskFile;
use tokio::runtime::Runtime;

use crate::pieces::{PIECE_BYTES, Pieces};

/// Bytes of a part of an upload: the minimum that S3 accepts. It accepts 10,000 of them, 52 GB, and
/// a compaction makes no files of more than some 4 GiB.
const PART_BYTES: usize = 5 << 20;
/// Parts of an upload in flight at a time.
const PARTS_AT_ONCE: usize = 4;
/// A store that does not answer is the user's problem, and is reported.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);
const RETRIES: usize = 4;

/// A bucket of an S3-compatible store.
#[derive(Clone)]
pub(crate) struct Bucket {
    store: Arc<dyn ObjectStore>,
    runtime: Arc<Tasks>,
    pieces: Arc<Mutex<Pieces>>,
}

/// The thread that waits for the store.
pub(crate) struct Tasks(Option<Runtime>);

impl Tasks {
    pub(crate) fn start() -> io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("strata-objects");
        Ok(Self(Some(builder.enable_all().build()?)))
    }

    /// Runs a future to completion. May be called wherever blocking is harmless, even on threads of
    /// another runtime.
    fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> io::Result<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        if let Some(runtime) = &self.0 {
            runtime.spawn(async move {
                let _ = sender.send(future.await);
            });
        }
        let ended = |_| io::Error::other("the thread for the object store has ended");
        let done = receiver.recv().map_err(ended)?;
        done.map_err(|error| to_io_error(&error))
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn to_io_error(error: &Error) -> io::Error {
    let (kind, what_to_do) = match error {
        Error::NotFound { .. } => (io::ErrorKind::NotFound, ""),
        Error::Unauthenticated { .. } | Error::PermissionDenied { .. } => (
            io::ErrorKind::PermissionDenied,
            "; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and their permissions",
        ),
        _ => (
            io::ErrorKind::Other,
            "; AWS_ENDPOINT_URL, AWS_REGION and AWS_ACCESS_KEY_ID set the server and the account",
        ),
    };
    io::Error::new(kind, format!("{error}{what_to_do}"))
}

impl Bucket {
    /// The bucket of this name, on the server and account given by the usual variables (`AWS_...`).
    pub(crate) fn open(
        name: &str,
        runtime: Arc<Tasks>,
        pieces: Arc<Mutex<Pieces>>,
    ) -> io::Result<Self> {
        let endpoints = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
        let mut endpoints = endpoints.iter().filter_map(|name| env::var(name).ok());
        let http = endpoints.any(|url| url.starts_with("http://"));
        let retry = RetryConfig {
            max_retries: RETRIES,
            retry_timeout: RETRY_TIMEOUT,
            ..RetryConfig::default()
        };
        let client = ClientOptions::new()
            .with_allow_http(http)
            .with_timeout(4 * RETRY_TIMEOUT);
        let store = AmazonS3Builder::from_env()
            .with_bucket_name(name)
            .with_retry(retry)
            .with_client_options(client)
            .build();
        Ok(Self {
            store: Arc::new(store.map_err(|error| to_io_error(&error))?),
            runtime,
            pieces,
        })
    }

    fn size(&self, key: &Path) -> io::Result<u64> {
        let (store, key) = (Arc::clone(&self.store), key.clone());
        let head = self.runtime.wait(async move { store.head(&key).await })?;
        Ok(head.size)
    }

    /// Opens an object for reading.
    pub(crate) fn read(&self, url: &str, key: Path) -> io::Result<Object> {
        Ok(Object {
            len: self.size(&key)?,
            bucket: self.clone(),
            url: url.into(),
            key,
        })
    }

    /// A new object, which exists once synced.
    pub(crate) fn write(&self, url: &str, key: Path) -> io::Result<Upload> {
        if self.exists(&key)? {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the object exists already: give each log its own prefix",
            ));
        }
        self.pieces().forget(url);
        Ok(Upload {
            bucket: self.clone(),
            key,
            at: 0,
            buffer: Vec::new(),
            parts: None,
        })
    }

    pub(crate) fn exists(&self, key: &Path) -> io::Result<bool> {
        match self.size(key) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn remove(&self, url: &str, key: &Path) -> io::Result<()> {
        self.pieces().forget(url);
        let (store, key) = (Arc::clone(&self.store), key.clone());
        match self.runtime.wait(async move { store.delete(&key).await }) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn only_from_start_to_end() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "objects are written once, from start to end",
    )
}

/// An object opened for reading, one piece at a time.
pub(crate) struct Object {
    bucket: Bucket,
    url: Arc<str>,
    key: Path,
    len: u64,
}

impl Object {
    fn piece(&self, number: u64) -> io::Result<Bytes> {
        let wanted = {
            let mut pieces = self.bucket.pieces();
            if let Some(bytes) = pieces.get(&self.url, number) {
                return Ok(bytes);
            }
            pieces.wanted(&self.url, number, self.len)
        };
        let len = wanted.end - wanted.start;
        let (store, key) = (Arc::clone(&self.bucket.store), self.key.clone());
        let read = async move { store.get_range(&key, wanted).await };
        let bytes = self.bucket.runtime.wait(read)?;
        if bytes.len() as u64 != len {
            let problem = format!("the store sent {} bytes instead of {len}", bytes.len());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem));
        }
        let first = usize::try_from(PIECE_BYTES.min(len)).expect("a piece fits into memory");
        let first = bytes.slice(..first);
        self.bucket.pieces().put(&self.url, number, bytes);
        Ok(first)
    }
}

impl DiskFile for Object {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            if at >= self.len {
                break;
            }
            let piece = self.piece(at / PIECE_BYTES)?;
            let within = usize::try_from(at % PIECE_BYTES).expect("a piece fits into memory");
            let take = (piece.len() - within).min(buffer.len() - done);
            buffer[done..done + take].copy_from_slice(&piece[within..within + take]);
            done += take;
        }
        Ok(done)
    }

    fn write_at(&mut self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        Err(only_from_start_to_end())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&mut self, _len: u64) -> io::Result<()> {
        Err(only_from_start_to_end())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }
}

/// An object being written, invisible until [`DiskFile::sync`].
pub(crate) struct Upload {
    bucket: Bucket,
    key: Path,
    at: u64,
    buffer: Vec<u8>,
    /// Set once the object is larger than one part.
    parts: Option<WriteMultipart>,
}

impl Upload {
    /// Sends the buffer as a part, waiting while too many are in flight.
    fn send(&mut self) -> io::Result<()> {
        let (store, key) = (Arc::clone(&self.bucket.store), self.key.clone());
        let (part, parts) = (std::mem::take(&mut self.buffer), self.parts.take());
        let send = async move {
            let mut parts = match parts {
                Some(parts) => parts,
                None => {
                    let upload = store.put_multipart(&key).await?;
                    WriteMultipart::new_with_chunk_size(upload, PART_BYTES)
                }
            };
            if let Err(error) = parts.wait_for_capacity(PARTS_AT_ONCE).await {
                let _ = parts.abort().await;
                return Err(error);
            }
            parts.put(part.into());
            Ok(parts)
        };
        self.parts = Some(self.bucket.runtime.wait(send)?);
        Ok(())
    }
}

impl DiskFile for Upload {
    fn read_at(&self, _buffer: &mut [u8], _offset: u64) -> io::Result<usize> {
        Err(only_from_start_to_end())
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if offset != self.at {
            return Err(only_from_start_to_end());
        }
        self.at += bytes.len() as u64;
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PART_BYTES {
            self.send()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.parts.is_some() && !self.buffer.is_empty() {
            self.send()?;
        }
        let (store, key) = (Arc::clone(&self.bucket.store), self.key.clone());
        let (whole, parts) = (std::mem::take(&mut self.buffer), self.parts.take());
        self.bucket.runtime.wait(async move {
            match parts {
                // Aborts by itself if it fails.
                Some(parts) => parts.finish().await,
                None => store.put(&key, whole.into()).await,
            }
        })?;
        Ok(())
    }

    fn set_len(&mut self, _len: u64) -> io::Result<()> {
        Err(only_from_start_to_end())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.at)
    }
}

impl Drop for Upload {
    /// Parts that were never synced must not stay in the store and cost money.
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            let _ = self.bucket.runtime.wait(parts.abort());
        }
    }
}
