//! What a telemetry service begins with: its store, or collectors that have told about theirs.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strata_auth::secret::Secret;
use strata_role::{At as _, Notice, Result, RoleError, Tell, require};
use strata_sandbox::Owner;
use strata_sys::pause::backoff;

use crate::service::notices::Reports;
use crate::service::wire::connector::{self, Identity, Opened};
use crate::service::wire::message::CollectorError;
use crate::store::plan::{Manifest, NamedList, Plan, TelemetryLayout};
use crate::store::share::Share;
use crate::store::{Writing, agree, counting, new_manifest};

/// Until a collector whose earlier translator has just gone takes another one.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
/// Between attempts.
const BUSY_AGAIN: Duration = Duration::from_millis(200);

/// Collectors in other processes.
#[derive(Clone, Debug)]
pub struct CollectorsSpec {
    /// The addresses that they listen on; keys and lists are spread over the collectors in this order.
    pub addresses: Vec<SocketAddr>,
    /// The secret that the collectors must prove to know.
    pub secret: Option<Secret>,
}

/// What a service begins with.
pub(crate) enum Ready {
    /// Its own store.
    Here(Box<Writing>),
    /// Collectors elsewhere.
    There(Box<There>),
}

/// Collectors elsewhere, and what they said if they answered.
pub(crate) struct There {
    pub(crate) manifest: Manifest,
    plan: Plan,
    pub(crate) identity: Identity,
    pub(crate) opened: Vec<(SocketAddr, Option<Opened>)>,
    pub(crate) lock: std::fs::File,
}

impl Ready {
    /// The store in this directory, made if need be.
    pub(crate) fn here(
        dir: &Path,
        layout: &TelemetryLayout,
        lists: &[NamedList],
        owner: &Owner,
    ) -> Result<Self> {
        let writing = Writing::open(dir, layout, lists, owner)?;
        Ok(Self::Here(Box::new(writing)))
    }

    /// What the store, or that of each collector, is.
    pub(crate) fn plan(&self) -> &Plan {
        match self {
            Self::Here(writing) => &writing.plan,
            Self::There(there) => &there.plan,
        }
    }

    /// What to say of it.
    pub(crate) fn notice(&self, dir: &Path, reports: &Reports<'_>) -> Notice {
        match self {
            Self::Here(writing) => reports.stored(dir, writing.continued),
            Self::There(there) => {
                let opened = there.opened.iter().map(|(address, _)| *address);
                let collectors: Vec<SocketAddr> = opened.collect();
                reports.translated(&collectors, dir)
            }
        }
    }
}

/// Asks collectors elsewhere what stores they have. The first that has one decides what all are to
/// have; else the options do, and all must be there, since one that is not might have one.
pub(crate) fn connect(
    collectors: &CollectorsSpec,
    (dir, owner): (&Path, &Owner),
    layout: &TelemetryLayout,
    lists: &[NamedList],
    stop: &AtomicBool,
    tell: &Tell,
) -> Result<Ready> {
    let lock = counting(dir, owner)?;
    let identity = Identity {
        instance: getrandom::u64().map_err(std::io::Error::other)?,
        secret: collectors.secret.clone(),
    };
    let (mut opened, mut absent) = (Vec::new(), None);
    for &address in &collectors.addresses {
        match open(address, &identity, stop) {
            Ok(collector) => opened.push((address, Some(collector))),
            Err(error) if error.passes() => {
                opened.push((address, None));
                absent = Some(error);
            }
            Err(error) => return Err(error.into()),
        }
    }
    let (count, stores) = (opened.len(), opened.iter().enumerate());
    let stores = stores.filter_map(|(index, (address, opened))| {
        let manifest = opened.as_ref()?.manifest.as_ref()?;
        Some((Share::new(index, count), *address, manifest))
    });
    let mut known: Option<(SocketAddr, Manifest, Plan)> = None;
    for (share, address, text) in stores {
        let named = format!("the store of collector {address}");
        let (manifest, plan) = Manifest::parse(text).at_with(|| named.clone())?;
        agree(&named, layout, &plan)?;
        if let Some(before) = manifest.share.filter(|&before| before != share) {
            return Err(RoleError::Refused(format!(
                "collector {address}: {}",
                before.refusal(share)
            )));
        }
        if let Some((first, other, _)) = &known {
            require(other.is_of(&manifest), || {
                format!(
                    "collectors {first} and {address} have stores of different translators: give one \
                     of them a new store (`strata telemetry collect -o`)"
                )
            })?;
        } else {
            known = Some((address, manifest, plan));
        }
    }
    let (manifest, plan) = match (known, absent) {
        (Some((_, mut manifest, plan)), absent) => {
            if let Some(error) = absent {
                tell(&Notice::warning(RoleError::from(error).chain()));
            }
            manifest.lists = lists.to_vec();
            (manifest, plan)
        }
        (None, Some(error)) => return Err(error.into()),
        (None, None) => {
            let manifest = new_manifest(layout, lists)?;
            let plan = manifest.plan()?;
            (manifest, plan)
        }
    };
    Ok(Ready::There(Box::new(There {
        manifest,
        plan,
        identity,
        opened,
        lock,
    })))
}

/// Connects to a collector; waits if it has not noticed yet that an earlier translator is gone.
fn open(
    address: SocketAddr,
    identity: &Identity,
    stop: &AtomicBool,
) -> std::result::Result<Opened, CollectorError> {
    let start = Instant::now();
    loop {
        match connector::open(address, identity) {
            Err(CollectorError::Busy { .. })
                if start.elapsed() < BUSY_LIMIT && !stop.load(Ordering::Relaxed) =>
            {
                backoff(BUSY_AGAIN);
            }
            // By now it is another one that works.
            Err(CollectorError::Busy { peer, reason }) => {
                return Err(CollectorError::Refused { peer, reason });
            }
            opened => return opened,
        }
    }
}
