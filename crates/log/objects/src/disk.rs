//! A log's disk together with its object tier.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path as FilePath;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::path::Path;
use strata_store::{Disk, DiskFile, DiskLayer, FileKind, RealDisk, is_remote, tier_of};

use crate::bucket::{Bucket, Tasks};
use crate::pieces::Pieces;

/// A log's disk on which names that are URLs refer to files of an object store or of another
/// directory. All others are on the disk below.
///
/// Objects are read by ranges, never whole: in pieces of 1 MiB, of which 64 stay in memory, and 8
/// at a time for sequential readers. So finding a flow costs its pages, not the whole file. A store
/// is not contacted before one of its files is needed.
pub struct ObjectDisk {
    below: Arc<dyn Disk>,
    /// The root directory, for `file:///`.
    root: RealDisk,
    buckets: Mutex<Buckets>,
}

#[derive(Default)]
struct Buckets {
    open: HashMap<String, Bucket>,
    runtime: Option<Arc<Tasks>>,
    pieces: Arc<Mutex<Pieces>>,
}

/// What a name refers to.
enum Place<'a> {
    /// On the log's own disk.
    Own,
    /// A path below the root directory.
    File(&'a str),
    Object(Bucket, Path),
}

impl ObjectDisk {
    /// `below` is the log's own disk.
    #[must_use]
    pub fn new(below: Arc<dyn Disk>) -> Self {
        Self {
            below,
            root: RealDisk::at(FilePath::new("/")),
            buckets: Mutex::default(),
        }
    }

    fn place<'a>(&self, name: &'a str) -> io::Result<Place<'a>> {
        if !is_remote(name) {
            return Ok(Place::Own);
        }
        if let Some(path) = name.strip_prefix("file:///") {
            return Ok(Place::File(path));
        }
        let invalid = |problem: String| io::Error::new(io::ErrorKind::InvalidInput, problem);
        let Some((bucket, key)) = name
            .strip_prefix("s3://")
            .and_then(|rest| rest.split_once('/'))
        else {
            return Err(invalid(format!(
                "'{name}' is neither s3://BUCKET/PREFIX nor file:///DIRECTORY"
            )));
        };
        let key = Path::parse(key).map_err(|error| invalid(error.to_string()))?;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = buckets.open.get(bucket) {
            return Ok(Place::Object(open.clone(), key));
        }
        let runtime = match &buckets.runtime {
            Some(runtime) => Arc::clone(runtime),
            None => Arc::clone(buckets.runtime.insert(Arc::new(Tasks::start()?))),
        };
        let opened = Bucket::open(bucket, runtime, Arc::clone(&buckets.pieces))?;
        buckets.open.insert(bucket.to_owned(), opened.clone());
        Ok(Place::Object(opened, key))
    }
}

// Everything else applies only to the log's own files.
impl DiskLayer for ObjectDisk {
    fn below(&self) -> &dyn Disk {
        self.below.as_ref()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        match self.place(name)? {
            Place::Own => self.below.create(name),
            Place::File(path) => self.root.create(path),
            Place::Object(bucket, key) => Ok(Box::new(bucket.write(name, key)?)),
        }
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<Box<dyn DiskFile>> {
        match self.place(name)? {
            Place::Own => self.below.open(name, writable),
            Place::File(path) => self.root.open(path, writable),
            Place::Object(bucket, key) => Ok(Box::new(bucket.read(name, key)?)),
        }
    }

    fn exists(&self, name: &str) -> bool {
        match self.place(name) {
            Ok(Place::Own) => self.below.exists(name),
            Ok(Place::File(path)) => self.root.exists(path),
            Ok(Place::Object(bucket, key)) => bucket.exists(&key).unwrap_or(false),
            Err(_) => false,
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match self.place(name)? {
            Place::Own => self.below.remove(name),
            Place::File(path) => {
                self.root.remove(path)?;
                // It may only seem to be gone, because its disk is not mounted.
                DiskLayer::reach(self, tier_of(name).unwrap_or(name), false)
            }
            Place::Object(bucket, key) => bucket.remove(name, &key),
        }
    }

    /// A directory is a tier if it has a directory `packets`: made before a file is moved there, and never removed.
    fn reach(&self, tier: &str, is_new: bool) -> io::Result<()> {
        let Some(path) = tier.strip_prefix("file:///") else {
            return Ok(());
        };
        let packets = FilePath::new("/").join(path).join(FileKind::Packets.dir());
        if is_new {
            return RealDisk::create_dir(&packets).map(drop);
        }
        let why = match fs::metadata(&packets) {
            Ok(found) if found.is_dir() => return Ok(()),
            Ok(_) => String::from("not a directory"),
            Err(error) => error.to_string(),
        };
        let problem = format!(
            "{}: {why}; mount the disk, or if the files were deleted by hand, create this directory",
            packets.display()
        );
        Err(io::Error::new(io::ErrorKind::NotFound, problem))
    }

    fn display(&self, name: &str) -> String {
        if is_remote(name) {
            return name.to_owned();
        }
        self.below.display(name)
    }
}
