//! pcapng option lists of files, turned into the form used inside Strata
//! ([`strata_wire::pcapng::options`]).

use strata_wire::pcapng::options::{code, push};

use super::order::Order;

/// First option of `bytes`, its value, and the rest; `None` if there is no complete one. The last
/// option's padding may be missing.
pub(crate) fn split(bytes: &[u8], order: Order) -> Option<(u16, &[u8], &[u8])> {
    let (head, rest) = bytes.split_at_checked(4)?;
    let code = order.u16(head, 0);
    let len = usize::from(order.u16(head, 2));
    let value = rest.get(..len)?;
    let rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    Some((code, value, rest))
}

/// How a value changes with byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// Text, addresses, single bytes: it does not.
    Bytes,
    /// One 32-bit number, or several.
    Words,
    /// 64-bit numbers.
    Longs,
    /// A 32-bit number, then bytes.
    WordThenBytes,
    /// One byte, then a 64-bit number if exactly that follows.
    ByteThenLong,
    /// Not carried over: must not be copied.
    Private,
}

/// The shape of options that every block may have; `None` for the others.
pub(crate) fn shape_common(code: u16) -> Option<Shape> {
    match code {
        code::CUSTOM_TEXT | code::CUSTOM_BYTES => Some(Shape::WordThenBytes),
        code::CUSTOM_TEXT_PRIVATE | code::CUSTOM_BYTES_PRIVATE => Some(Shape::Private),
        code::COMMENT => Some(Shape::Bytes),
        _ => None,
    }
}

/// Section headers, name resolution, decryption secrets: all text and addresses.
pub(crate) fn shape_plain(_: u16) -> Shape {
    Shape::Bytes
}

/// Interface descriptions (section 4.2).
pub(crate) fn shape_interface(code: u16) -> Shape {
    match code {
        code::IF_TZONE => Shape::Words,
        code::IF_SPEED | code::IF_TSOFFSET | code::IF_TXSPEED | code::IF_RXSPEED => Shape::Longs,
        _ => Shape::Bytes,
    }
}

/// Packets, enhanced and obsolete (section 4.3, appendix A).
pub(crate) fn shape_packet(code: u16) -> Shape {
    match code {
        code::EPB_FLAGS | code::EPB_QUEUE | code::EPB_PROCESSID_THREADID => Shape::Words,
        code::EPB_DROPCOUNT | code::EPB_PACKETID => Shape::Longs,
        code::EPB_VERDICT => Shape::ByteThenLong,
        _ => Shape::Bytes,
    }
}

/// Interface statistics (section 4.6).
pub(crate) fn shape_statistics(code: u16) -> Shape {
    match code {
        // Two 32-bit halves, the high one first in both byte orders.
        code::ISB_STARTTIME | code::ISB_ENDTIME => Shape::Words,
        code::ISB_IFRECV..=code::ISB_USRDELIV => Shape::Longs,
        _ => Shape::Bytes,
    }
}

/// A truncated option list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Appends the options of a file's list to `out` in the form used inside Strata, up
/// to `opt_endofopt` or the end.
///
/// # Errors
/// [`Malformed`] if an option does not fit; those before it are in `out`.
pub(crate) fn normalise(
    mut list: &[u8],
    order: Order,
    shape_of: fn(u16) -> Shape,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    while !list.is_empty() {
        let (code, value, rest) = split(list, order).ok_or(Malformed)?;
        if code == code::END {
            break;
        }
        list = rest;
        let shape = shape_common(code).unwrap_or_else(|| shape_of(code));
        if shape == Shape::Private {
            continue;
        }
        let start = out.len();
        push(out, code, value).expect("its length was read from 16 bits");
        if order == Order::Big {
            let pushed = out.get_mut(start..).and_then(|all| all.get_mut(4..));
            let pushed = pushed.and_then(|all| all.get_mut(..value.len()));
            swap(pushed.expect("it was just pushed"), shape);
        }
    }
    Ok(())
}

/// Turns a big-endian value into a little-endian one, in place.
fn swap(value: &mut [u8], shape: Shape) {
    match shape {
        Shape::Bytes | Shape::Private => {}
        Shape::Words => value.chunks_exact_mut(4).for_each(<[u8]>::reverse),
        Shape::Longs => value.chunks_exact_mut(8).for_each(<[u8]>::reverse),
        Shape::WordThenBytes => {
            if let Some(number) = value.get_mut(..4) {
                number.reverse();
            }
        }
        Shape::ByteThenLong => {
            if value.len() == 9 {
                value[1..].reverse();
            }
        }
    }
}

/// Length of the part of a little-endian list that is in the form used inside Strata already;
/// `None` if it must be copied.
pub(crate) fn plain_len(list: &[u8]) -> Option<usize> {
    let mut rest = list;
    while !rest.is_empty() {
        let (code, value, after) = split(rest, Order::Little)?;
        if code == code::END {
            break;
        }
        // Of at most 65,535 bytes.
        let whole = value.len().next_multiple_of(4).wrapping_add(4);
        if shape_common(code) == Some(Shape::Private) || whole > rest.len() {
            return None;
        }
        rest = after;
    }
    // What is left is its end.
    list.len().checked_sub(rest.len())
}

#[cfg(test)]
mod tests {
    use strata_wire::pcapng::options::{iter, push_comment};

    use super::*;

    #[test]
    fn big_endian_values_are_swapped() {
        let list = [
            &[0, 2, 0, 4, 0, 0, 0, 7][..],                     // flags
            &[0, 7, 0, 9, 2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0], // verdict
            &[0x0b, 0xac, 0, 5, 0, 0, 0, 9, b'x', 0, 0, 0],    // custom text
            &[0x4b, 0xad, 0, 5, 0, 0, 0, 9, b'x', 0, 0, 0],    // private
            &[0, 0, 0, 0, 0xff],
        ]
        .concat();
        let mut out = Vec::new();
        normalise(&list, Order::Big, shape_packet, &mut out).unwrap();
        let all: Vec<_> = iter(&out).collect();
        assert_eq!(
            all,
            [
                (2, &[7, 0, 0, 0][..]),
                (7, &[2, 5, 0, 0, 0, 0, 0, 0, 0][..]),
                (2988, &[9, 0, 0, 0, b'x'][..]),
            ]
        );
        assert_eq!(plain_len(&out), Some(out.len()));
    }

    #[test]
    fn a_broken_list_keeps_what_came_before() {
        let mut list = Vec::new();
        push_comment(&mut list, "kept").unwrap();
        let good = list.clone();
        list.extend_from_slice(&[1, 0, 200, 0, 1]);
        assert_eq!(plain_len(&list), None);
        let mut out = Vec::new();
        assert_eq!(
            normalise(&list, Order::Little, shape_packet, &mut out),
            Err(Malformed)
        );
        assert_eq!(out, good);
    }
}
