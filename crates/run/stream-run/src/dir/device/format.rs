//! Making a device a stripe.

use std::path::Path;

use strata_stream::Geometry;
use strata_stream::nvme::{Content, Label};
use strata_wire::{exact, human_bytes};

use super::foreign::what;
use super::layout::{LABEL_BYTES, LAYOUT_AT, Layout, MAP_AT};
use super::{Raw, place, stripe_on};
use crate::dir::pool::map_header;
use crate::error::{In as _, Result, StreamError};

/// Larger ones cannot be written in pieces of 4 KiB.
const LOGICAL_BLOCK_MAX: u32 = 4096;
const CHUNK: usize = 1 << 20;

/// What a device holds.
pub(crate) enum Holds {
    /// Zeros, as far as its ends say.
    Nothing,
    /// A stripe with this id.
    Stripe(u64),
    /// Something that is not to be written over unless the user says so.
    Other(String),
}

fn refuse(raw: &Raw, problem: &str) -> StreamError {
    StreamError::Damaged {
        file: raw.shown.clone(),
        problem: format!("it cannot be a stripe: {problem}"),
    }
}

/// Bytes of a device's own blocks.
pub(crate) fn logical_block(raw: &Raw) -> Result<u32> {
    let file = raw.open(false).in_file(|| raw.shown.clone())?;
    let file = file.shared().expect("a device of the operating system");
    let size = rustix::fs::ioctl_blksszget(&file).map_err(Into::into);
    let size = size.in_file(|| raw.shown.clone())?;
    if size > LOGICAL_BLOCK_MAX {
        let problem = format!("its blocks have {size} bytes, more than {LOGICAL_BLOCK_MAX}");
        return Err(refuse(raw, &problem));
    }
    Ok(size)
}

/// What a device holds, as its ends say.
pub(crate) fn holds(raw: &Raw, logical_block: u32) -> Result<Holds> {
    if let Ok((id, _)) = stripe_on(raw) {
        return Ok(Holds::Stripe(id));
    }
    let named = || raw.shown.clone();
    let file = raw.open(false).in_file(named)?;
    let size = file.size().in_file(named)?;
    let len = size.min(Label::ENDS_LEN);
    let (mut first, mut last) = (vec![0; exact(len)], vec![0; exact(len)]);
    file.read_at(&mut first, 0).in_file(named)?;
    file.read_at(&mut last, size - len).in_file(named)?;
    let blocks = size / u64::from(logical_block);
    Ok(match Content::of(blocks, &first, &last) {
        Content::Nothing => Holds::Nothing,
        Content::Ours(_) => Holds::Other("data of Strata that is not a stripe".to_owned()),
        Content::Foreign if Label::parse(&first).is_some() => {
            Holds::Other("data of Strata for a device of another size".to_owned())
        }
        Content::Foreign => Holds::Other(what(&first, &last).to_owned()),
    })
}

/// As [`format()`], for a device of this machine without other users.
pub(crate) fn format_real(raw: &Raw, geometry: Geometry, (id, now_ns): (u64, u64)) -> Result<()> {
    let path: &Path = raw.path.as_ref().expect("a device of this machine");
    let _claim = place::claim_for_writing(path)?;
    format(raw, geometry, (id, now_ns), logical_block(raw)?)
}

/// Makes a device a stripe without any page. What says what was there before is erased; pages are where they were,
/// and are not found any more.
pub(crate) fn format(
    raw: &Raw,
    geometry: Geometry,
    (id, now_ns): (u64, u64),
    logical_block: u32,
) -> Result<()> {
    let named = || raw.shown.clone();
    let mut file = raw.open(true).in_file(named)?;
    let size = file.size().in_file(named)?;
    let layout = Layout::of(size, geometry.page_bytes).ok_or_else(|| {
        let [held, least] = [size, Layout::size_min(geometry.page_bytes)].map(human_bytes);
        refuse(
            raw,
            &format!("it has {held}, but a stripe needs at least {least}"),
        )
    })?;
    // Last of all, it gets its label. Without one it is no stripe.
    file.write_at(&[0; LABEL_BYTES], 0).in_file(named)?;
    file.sync().in_file(named)?;
    let zeros = vec![0; CHUNK];
    let last = size.saturating_sub(Label::ENDS_LEN).max(layout.pages_at);
    for range in [LAYOUT_AT..layout.pages_at, last..size] {
        for at in range.clone().step_by(CHUNK) {
            let len = exact::<usize>((range.end - at).min(CHUNK as u64));
            file.write_at(&zeros[..len], at).in_file(named)?;
        }
    }
    file.write_at(&layout.emit(), LAYOUT_AT).in_file(named)?;
    let map = map_header(geometry, Some(id));
    file.write_at(&map, MAP_AT).in_file(named)?;
    file.sync().in_file(named)?;
    let label = Label {
        id,
        created_ns: now_ns,
        blocks: size / u64::from(logical_block),
    };
    file.write_at(&label.emit(), 0).in_file(named)?;
    file.sync().in_file(named)
}
