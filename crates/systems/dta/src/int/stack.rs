//! INT-MD: the metadata that a packet gathers (INT Dataplane Specification 2.1, 2020-11-11, §5.7.2
//! and §5.8; 1.0, 2018-04-20, whose shim counts itself and whose header has 8 bytes).
//!
//! ```text
//! shim 2.x   type 4 (1: MD), NPT 2, rsvd 2 | words after it u8 | UDP port, IP protocol or DSCP u16
//! shim 1.0   type u8 (1) | rsvd | words with it u8 | DSCP 6, rsvd 2
//! header     ver 4, flags | rsvd 3, hop words 5 | remaining hops u8
//!            instructions u16 | domain u16 | domain instructions u16 | domain flags u16   (1.0: rsvd u16)
//! stack      hop words * 4 bytes of each hop, the last hop first
//! ```

use std::net::IpAddr;

use strata_wire::{AddressFamily, Headers, LinkType, TunnelKey, dissect, ip_addr};

use super::{Hop, IntError};
use crate::key::FiveTuple;

/// Maximum number of hops that are read of a stack.
pub const HOPS_MAX: usize = 64;
const SHIM_LEN: usize = 4;

/// The marks by which INT headers are recognised within packets; the operator chooses both. Without marks, INT headers
/// are recognised by their contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// Destination port of UDP.
    pub udp_port: Option<u16>,
    /// Value of the DSCP field, after TCP and UDP.
    pub dscp: Option<u8>,
}

/// The contents of the start of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Inner<'a> {
    /// Its flow, as it was without INT.
    pub flow: Option<FiveTuple>,
    /// Time to live.
    pub ttl: u8,
    /// The stack of INT-MD.
    pub stack: Option<Stack<'a>>,
    /// Whether it has a stack according to the headers, but not the mark; then the stack is not read.
    pub is_unmarked: bool,
}

/// A view of a stack whose header and length were checked.
#[derive(Clone, Copy, Debug)]
pub struct Stack<'a> {
    instructions: u16,
    is_version_1: bool,
    hop_len: usize,
    /// A node had no room to add its metadata: hops or MTU exceeded.
    pub is_incomplete: bool,
    hops: &'a [u8],
}

impl<'a> Stack<'a> {
    /// The hops, from the last to the first.
    pub fn hops(&self) -> impl ExactSizeIterator<Item = Hop> + DoubleEndedIterator + use<'a> {
        let stack = *self;
        let all = self.hops.chunks_exact(self.hop_len);
        all.map(
            move |bytes| match Hop::read(stack.instructions, bytes, stack.is_version_1, true) {
                Some(hop) => hop,
                None => unreachable!("the length of a hop was checked"),
            },
        )
    }

    /// Reads shim, header and stack from the front of `bytes`; also what follows them, and what the
    /// shim says about that.
    ///
    /// # Errors
    ///
    /// [`IntError`]; `Ok(None)` if it is INT without a stack.
    #[allow(clippy::type_complexity, reason = "a stack, its shim, the rest")]
    fn read(bytes: &'a [u8]) -> Result<Option<(Self, [u8; 4], &'a [u8])>, IntError> {
        const SHIM: IntError = IntError::Truncated("the INT shim");
        const HEADER: IntError = IntError::Truncated("the INT-MD header");
        let (&shim, after) = bytes.split_first_chunk::<SHIM_LEN>().ok_or(SHIM)?;
        let (is_version_1, words) = match shim[0] {
            0x01 => (true, usize::from(shim[2]).checked_sub(1).ok_or(HEADER)?),
            kind if kind >> 4 == 1 => (false, usize::from(shim[1])),
            // INT-MX, or a destination type: nothing is gathered.
            _ => return Ok(None),
        };
        let option = words
            .checked_mul(4)
            .and_then(|len| after.split_at_checked(len));
        let (option, after) = option.ok_or(IntError::Truncated("the INT stack"))?;
        let header_len = if is_version_1 { 8 } else { 12 };
        let (header, stack) = option.split_at_checked(header_len).ok_or(HEADER)?;
        let version = header[0] >> 4;
        if version != if is_version_1 { 1 } else { 2 } {
            return Err(IntError::StackVersion(version));
        }
        let flags = if is_version_1 {
            [header[0] & 1, header[1] & 0x80]
        } else {
            [header[0] & 4, header[0] & 2]
        };
        let instructions = u16::from_be_bytes([header[4], header[5]]);
        let hop_len = usize::from(header[2] & 0x1f).wrapping_mul(4);
        if hop_len == 0 {
            return Ok(None);
        }
        if Hop::read(instructions, &[0; 128][..hop_len], is_version_1, true).is_none() {
            return Err(IntError::Length("a hop's metadata"));
        }
        let hops = stack.len().min(hop_len.wrapping_mul(HOPS_MAX));
        let found = Self {
            instructions,
            is_version_1,
            hop_len,
            is_incomplete: flags != [0; 2],
            hops: &stack[..hops],
        };
        Ok(Some((found, shim, after)))
    }
}

/// Whether this begins with an INT shim, header and stack by all that they say: reserved bits, versions,
/// and lengths that follow from each other. Any payload may pass for one with a probability of less than
/// 2^-40 if it is random.
fn is_stack(bytes: &[u8]) -> bool {
    let &[kind, second, third, fourth, ref option @ ..] = bytes else {
        return false;
    };
    let (is_version_1, words, is_shim) = match kind {
        0x01 => (true, third, second == 0 && fourth & 3 == 0),
        _ => (
            false,
            second,
            kind >> 4 == 1 && kind & 3 == 0 && kind >> 2 & 3 != 3,
        ),
    };
    let len = usize::from(words).wrapping_mul(4);
    let len = if is_version_1 {
        len.checked_sub(4)
    } else {
        Some(len)
    };
    let Some(option) = len.and_then(|len| option.get(..len)) else {
        return false;
    };
    let Some(([version, flags, hop_words, _, a, b, c, d], rest)) = option.split_first_chunk()
    else {
        return false;
    };
    let instructions = u16::from_be_bytes([*a, *b]);
    let (is_header, domain, stack) = match is_version_1 {
        true => (
            version & 0xfc == 0x10 && flags & 0x7f == 0 && [*c, *d] == [0; 2],
            0,
            rest,
        ),
        false => match rest.split_first_chunk::<4>() {
            Some(([e, f, _, _], stack)) => {
                let domain = u16::from_be_bytes([*e, *f]);
                (version & 0xf1 == 0x20 && *flags == 0, domain, stack)
            }
            None => return false,
        },
    };
    let hop_len = usize::from(hop_words & 0x1f).wrapping_mul(4);
    let baseline = Hop::len(instructions, is_version_1);
    let is_hop = if domain == 0 {
        hop_len == baseline
    } else {
        hop_len >= baseline
    };
    let is_whole = stack.len().checked_rem(hop_len) == Some(0) && !stack.is_empty();
    let names_nodes = instructions & 0x8000 != 0
        && is_whole
        && stack
            .chunks_exact(hop_len)
            .all(|hop| hop.first_chunk() != Some(&[0; 4]));
    is_shim && is_header && hop_words >> 5 == 0 && is_hop && names_nodes
}

fn five_tuple(headers: &Headers) -> Option<FiveTuple> {
    let key = headers.key?;
    if key.family == AddressFamily::Mac {
        return None;
    }
    let (source, destination) = headers.endpoints();
    let address = |address: u128| -> Option<IpAddr> { ip_addr(key.family, address) };
    Some(FiveTuple {
        source: address(source.address)?,
        destination: address(destination.address)?,
        source_port: source.port,
        destination_port: destination.port,
        protocol: key.protocol,
    })
}

impl<'a> Inner<'a> {
    /// Reads the start of a packet.
    ///
    /// # Errors
    ///
    /// [`IntError`] if it is marked as INT and the stack cannot be read.
    pub fn read(link: LinkType, packet: &'a [u8], marks: &Marks) -> Result<Self, IntError> {
        let headers = dissect::dissect(link, packet, TunnelKey::Inner);
        let mut inner = Self {
            flow: five_tuple(&headers),
            ttl: headers.ttl,
            stack: None,
            is_unmarked: false,
        };
        let Some(flow) = &mut inner.flow else {
            return Ok(inner);
        };
        let by_port = flow.protocol == 17 && marks.udp_port == Some(flow.destination_port);
        let by_dscp = matches!(flow.protocol, 6 | 17) && marks.dscp == Some(headers.tos >> 2);
        let start = usize::try_from(headers.header_len).map_or(packet.len(), |len| len);
        if start >= packet.len() {
            return Ok(inner);
        }
        if !(by_port || by_dscp) {
            let has_ports = matches!(flow.protocol, 6 | 17);
            if !has_ports || !is_stack(&packet[start..]) {
                return Ok(inner);
            }
            if *marks != Marks::default() {
                inner.is_unmarked = true;
                return Ok(inner);
            }
        }
        let Some((stack, shim, after)) = Stack::read(&packet[start..])? else {
            return Ok(inner);
        };
        // After TCP and by DSCP, ports are those of the packet.
        if flow.protocol == 17 && !by_dscp && !stack.is_version_1 {
            match shim[0] >> 2 & 3 {
                1 => flow.destination_port = u16::from_be_bytes([shim[2], shim[3]]),
                2 => {
                    flow.protocol = shim[3];
                    let ports = after
                        .first_chunk::<4>()
                        .filter(|_| matches!(shim[3], 6 | 17 | 132));
                    let [a, b, c, d] = ports.map_or([0; 4], |ports| *ports);
                    flow.source_port = u16::from_be_bytes([a, b]);
                    flow.destination_port = u16::from_be_bytes([c, d]);
                }
                _ => {}
            }
        }
        inner.stack = Some(stack);
        Ok(inner)
    }
}
