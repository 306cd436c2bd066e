//! Where other disks of a directory are.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use strata_store::{Disk, RealDisk};
use strata_stream::StreamName;

use crate::dir::device::{Device, Raw, is_device};
use crate::dir::link::TcpStripe;
use crate::dir::locks::Locks;
use crate::dir::remote::{StripeServer, StripeTls};
use crate::error::{In as _, Result, StreamError};

/// What a stripe is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// A directory on another disk.
    #[default]
    Directory,
    /// A block device, without a file system.
    Device,
    /// A stripe that a server of streams has.
    Server,
}

/// The address and the name in `HOST:PORT/NAME`.
pub(crate) fn at_server(text: &str) -> Option<(&str, StreamName)> {
    let (address, name) = text.rsplit_once('/')?;
    let (host, port) = address.rsplit_once(':')?;
    let is_address = !host.is_empty() && !address.contains('/') && port.parse::<u16>().is_ok();
    is_address.then_some((address, name.parse().ok()?))
}

impl Kind {
    /// What somebody means by this place. A directory need not exist yet.
    pub(crate) fn of(place: &Path) -> Result<Self> {
        let named = || place.display().to_string();
        if at_server(&named()).is_some() {
            return Ok(Self::Server);
        }
        match fs::metadata(place) {
            Ok(found) if found.is_dir() => Ok(Self::Directory),
            Ok(_) if is_device(place) => Ok(Self::Device),
            Ok(_) => Err(StreamError::Damaged {
                file: named(),
                problem:
                    "it cannot be a stripe: name a directory on another disk, or a block device"
                        .to_owned(),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_for_devices(place) => {
                Ok(Self::Directory)
            }
            Err(error) => Err(error).in_file(named),
        }
    }

    /// In a list, a directory may leave it out.
    pub(crate) fn is_directory(&self) -> bool {
        *self == Self::Directory
    }
}

/// Whether devices would be here, so that a directory is not what somebody means.
fn is_for_devices(place: &Path) -> bool {
    place.starts_with("/dev") && !place.starts_with("/dev/shm")
}

/// A stripe's files and locks.
pub(crate) type Reached = (Arc<dyn Disk>, Locks);

fn on_device(raw: Raw, locks: impl FnOnce(u64) -> Locks) -> Result<Place> {
    let device = Device::open(raw, locks)?;
    let locks = device.locks().clone();
    Ok(Place::Here((Arc::new(device), locks)))
}

/// Where a stripe is.
#[derive(Clone)]
pub(crate) enum Place {
    /// On a disk of this machine.
    Here(Reached),
    /// At a server.
    Server(Arc<dyn StripeServer>),
}

/// Connections to servers, by address and TLS files.
type Servers = BTreeMap<(String, Option<StripeTls>), Arc<TcpStripe>>;

/// How stripes are reached.
#[derive(Clone)]
pub(crate) enum Elsewhere {
    /// Where their list says. Addresses and certificates of servers are kept, since a role cannot read them any more
    /// once it is in its sandbox.
    Real(Arc<Mutex<Servers>>),
    /// Their paths are indices of these, `0`, `1`, and so on. A device is a file of its disk.
    Simulated(Arc<Vec<Place>>),
}

impl Elsewhere {
    pub(crate) fn real() -> Self {
        Self::Real(Arc::default())
    }

    /// Where a stripe is, which may be gone: then opening it fails, or this does. `locks` are those of the directory.
    pub(crate) fn at(
        &self,
        (kind, path, tls): (Kind, &str, Option<&StripeTls>),
        locks: &Locks,
    ) -> Result<Place> {
        let servers = match self {
            Self::Real(servers) => servers,
            Self::Simulated(places) => {
                let index: usize = path.parse().expect("a simulated stripe");
                return match (places[index].clone(), kind) {
                    (Place::Here((disk, locks)), Kind::Device) => {
                        on_device(Raw::simulated(disk), |_| locks)
                    }
                    (place, _) => Ok(place),
                };
            }
        };
        match kind {
            Kind::Directory => Ok(Place::Here((
                Arc::new(RealDisk::at(Path::new(path))),
                Locks::Files(PathBuf::from(path)),
            ))),
            Kind::Device => on_device(Raw::real(Path::new(path))?, |id| locks.of_stripe(id)),
            Kind::Server => {
                let (address, name) = at_server(path).ok_or_else(|| StreamError::Damaged {
                    file: path.to_owned(),
                    problem: "a stripe at a server is HOST:PORT/NAME".to_owned(),
                })?;
                let mut servers = servers.lock().unwrap_or_else(PoisonError::into_inner);
                let server = servers.entry((path.to_owned(), tls.cloned()));
                let server =
                    server.or_insert_with(|| Arc::new(TcpStripe::new(address, name, tls.cloned())));
                Ok(Place::Server(Arc::clone(server) as Arc<dyn StripeServer>))
            }
        }
    }
}
