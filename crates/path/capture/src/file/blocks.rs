//! pcapng blocks that neither hold nor describe packets: turned into bodies that are valid in any
//! little-endian section.

use strata_wire::Meta;
use strata_wire::pcapng::options::{iter, pad, push};
use strata_wire::pcapng::{block_type, options::code};

use super::interface::Local;
use super::options::{self, Malformed};
use super::order::Order;
use super::time::nearest;
use crate::error::WarningKind;

/// A block's body, normalised.
///
/// The data of custom blocks, after the private enterprise number, is carried over unchanged: only
/// its owner knows its byte order (section 5.4).
///
/// `None` if the block is omitted. `warn` gets the reason, and what else is odd.
pub(super) fn normalise(
    block_type: u32,
    body: &[u8],
    order: Order,
    interfaces: &[Local],
    mut warn: impl FnMut(WarningKind),
) -> Option<Meta> {
    let mut out = Vec::with_capacity(body.len().saturating_add(8));
    let mut interface = None;
    let done = match block_type {
        block_type::NAME_RESOLUTION => names(body, order, &mut out),
        block_type::INTERFACE_STATISTICS => {
            let done = statistics(body, order, interfaces, &mut out, &mut warn);
            done.map(|id| interface = Some(id))
        }
        block_type::DECRYPTION_SECRETS => secrets(body, order, &mut out),
        block_type::CUSTOM => custom(body, order, &mut out),
        // Text and little-endian lengths in sections of both orders.
        block_type::SYSTEMD_JOURNAL => {
            out.extend_from_slice(body);
            Ok(())
        }
        _ => {
            warn(WarningKind::UnknownBlock(block_type));
            return None;
        }
    };
    if let Err(Malformed) = done {
        warn(WarningKind::Block);
        return None;
    }
    Some(Meta::Block {
        block_type,
        interface,
        body: out,
    })
}

/// The number at the start of `bytes`, and what follows.
fn word(bytes: &[u8], order: Order) -> Result<(u32, &[u8]), Malformed> {
    let (field, rest) = bytes.split_first_chunk::<4>().ok_or(Malformed)?;
    Ok((order.u32(field, 0), rest))
}

/// Options at the end of a body, closed by `opt_endofopt` as older readers want.
fn closing_options(
    list: &[u8],
    order: Order,
    shape: fn(u16) -> options::Shape,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    let start = out.len();
    options::normalise(list, order, shape, out)?;
    if out.len() > start {
        out.extend_from_slice(&[0; 4]);
    }
    Ok(())
}

/// Name resolution block (section 4.5): records of type, length, value; their
/// values are addresses in network order and names.
fn names(body: &[u8], order: Order, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let mut rest = body;
    while !rest.is_empty() {
        let (record, value, after) = options::split(rest, order).ok_or(Malformed)?;
        rest = after;
        if record == 0 {
            break;
        }
        push(out, record, value).map_err(|_| Malformed)?;
    }
    out.extend_from_slice(&[0; 4]);
    closing_options(rest, order, options::shape_plain, out)
}

/// Interface statistics block (section 4.6); its times become ns since 1970.
fn statistics(
    body: &[u8],
    order: Order,
    interfaces: &[Local],
    out: &mut Vec<u8>,
    warn: &mut impl FnMut(WarningKind),
) -> Result<u16, Malformed> {
    let (fixed, list) = body.split_at_checked(12).ok_or(Malformed)?;
    let number = order.u32(fixed, 0);
    let local = interfaces.get(number as usize).ok_or(Malformed)?;
    let mut ns = |ticks: u64| match local.clock.ns(ticks) {
        Ok(ns) => halves(ns),
        Err(ns) => {
            warn(WarningKind::TimeOutOfRange);
            halves(nearest(ns))
        }
    };
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&ns(order.halves(fixed, 4)));
    let mut plain = Vec::with_capacity(list.len());
    options::normalise(list, order, options::shape_statistics, &mut plain)?;
    for (option, value) in iter(&plain) {
        let time = matches!(option, code::ISB_STARTTIME | code::ISB_ENDTIME) && value.len() == 8;
        let pushed = if time {
            push(out, option, &ns(Order::Little.halves(value, 0)))
        } else {
            push(out, option, value)
        };
        pushed.map_err(|_| Malformed)?;
    }
    if !plain.is_empty() {
        out.extend_from_slice(&[0; 4]);
    }
    Ok(local.id)
}

/// A time as pcapng writes it: high half, low half.
fn halves(ns: u64) -> [u8; 8] {
    ns.rotate_left(32).to_le_bytes()
}

/// Decryption secrets block (section 4.7): type, length, secrets, options.
fn secrets(body: &[u8], order: Order, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let (kind, rest) = word(body, order)?;
    let (len, rest) = word(rest, order)?;
    let secrets = rest.get(..len as usize).ok_or(Malformed)?;
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(secrets);
    pad(out);
    let list = rest.get(secrets.len().next_multiple_of(4)..).unwrap_or(&[]);
    closing_options(list, order, options::shape_plain, out)
}

/// Custom block (section 4.8): private enterprise number, then anything.
fn custom(body: &[u8], order: Order, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let (number, rest) = word(body, order)?;
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(rest);
    Ok(())
}
