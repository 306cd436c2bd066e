//! The vector code of [`PacketColumns::look`].

use super::lanes::{Kernel, Lanes};
use super::{GROUP, GROUPS, PacketColumns, WIDE};
use crate::formats::tunnel::{UDP_DESTINATIONS, UDP_EITHER, unusual};

/// [`PacketColumns::look`] for any lanes.
pub(super) struct Look<'a, 'b> {
    pub(super) columns: &'a mut PacketColumns,
    pub(super) key: &'a [u64; 8],
    pub(super) group: usize,
    pub(super) packets: &'a [&'b [u8]; GROUP],
}

/// A group's 16 values of a column.
#[inline(always)]
fn of<T>(column: &[T; WIDE], group: usize) -> &[T; GROUP] {
    &column.as_chunks().0[group]
}

#[inline(always)]
fn of_mut<T>(column: &mut [T; WIDE], group: usize) -> &mut [T; GROUP] {
    &mut column.as_chunks_mut().0[group]
}

/// Low and high words of products of 64 by 64 bits.
#[inline(always)]
fn multiply<L: Lanes>(l: L, a: L::U64, b: L::U64) -> (L::U64, L::U64) {
    let (a_high, b_high) = (l.shr_64(a, 32), l.shr_64(b, 32));
    let low = l.mul_low_halves(a, b);
    let (ab, ba) = (l.mul_low_halves(a, b_high), l.mul_low_halves(a_high, b));
    let high = l.mul_low_halves(a_high, b_high);
    let half = l.set_64(0xffff_ffff);
    let middle = l.add_64(
        l.add_64(l.shr_64(low, 32), l.and_64(ab, half)),
        l.and_64(ba, half),
    );
    (
        l.or_64(l.and_64(low, half), l.shl_64(middle, 32)),
        l.add_64(
            l.add_64(high, l.shr_64(ab, 32)),
            l.add_64(l.shr_64(ba, 32), l.shr_64(middle, 32)),
        ),
    )
}

/// [`mix64`](crate::mix64) of 16 values.
#[inline(always)]
fn mix<L: Lanes>(l: L, value: L::U64) -> L::U64 {
    let value = l.xor_64(value, l.shr_64(value, 30));
    let value = l.mul_64(value, 0xbf58_476d_1ce4_e5b9);
    let value = l.xor_64(value, l.shr_64(value, 27));
    let value = l.mul_64(value, 0x94d0_49bb_1331_11eb);
    l.xor_64(value, l.shr_64(value, 31))
}

/// [`FlowHasher::ipv4`](crate::FlowHasher::ipv4) of 16 flows, whose ends are address and port in 48
/// bits, and which of them go from the low to the high one.
#[inline(always)]
fn flows<L: Lanes>(
    l: L,
    key: &[u64; 8],
    (source, destination): (L::U64, L::U64),
    protocol: L::U64,
) -> (L::U64, u16) {
    let low_to_high = l.le_64(source, destination);
    let low = l.min_64(source, destination);
    let high = l.max_64(source, destination);
    let port = l.set_64(0xffff);
    let ports = l.or_64(l.and_64(low, port), l.shl_64(l.and_64(high, port), 16));
    let family = l.set_64(4 << 40);
    let tail = l.or_64(ports, l.or_64(l.shl_64(protocol, 32), family));
    let plus = |value, word: usize| l.add_64(value, l.set_64(key[word]));
    let (first, first_high) = multiply(l, plus(tail, 0), plus(l.shr_64(low, 16), 1));
    let (second, second_high) = multiply(l, plus(l.shr_64(high, 16), 2), l.set_64(key[3]));
    let sum = l.add_64(first, second);
    let sum_high = l.add_64(first_high, second_high);
    let sum_high = l.add_64(sum_high, l.carry_64(sum, first));
    let turned = l.or_64(l.shl_64(sum_high, 29), l.shr_64(sum_high, 35));
    let folded = l.xor_64(sum, turned);
    let mixed = mix(l, l.xor_64(folded, l.set_64(key[6] ^ key[7])));
    (l.max_64(mixed, l.set_64(1)), low_to_high)
}

/// Addresses and ports in 48 bits.
#[inline(always)]
fn end<L: Lanes>(l: L, address: L::U32, port: L::U32) -> L::U64 {
    l.or_64(l.shl_64(l.widen(address), 16), l.widen(port))
}

impl Kernel for Look<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Look {
            columns,
            key,
            group,
            packets,
        } = self;
        let group = group % GROUPS;
        let [source, destination, ports, ether, total, various, window] = l.heads(packets);
        let captured_len = l.load(of(&columns.captured_len, group));
        let wire_len = l.load(of(&columns.wire_len, group));
        let low_16 = |values| l.and(values, l.set(0xffff));

        let protocol = l.and(l.shr(various, 8), l.set(0xff));
        let is = |values, value| l.eq(values, l.set(value));
        let (tcp, udp) = (is(protocol, 6), is(protocol, 17));
        let tcp_len = l.and(l.shr(various, 18), l.set(0x3c));
        let transport_len = l.choose(tcp, tcp_len, l.set(8));
        let header_len = l.add(transport_len, l.set(34));
        let source_port = low_16(ports);
        let destination_port = l.shr(ports, 16);
        let mut tunnel = l.mask(0);
        for port in UDP_EITHER {
            let port = u32::from(port);
            let is_either = l.either(is(destination_port, port), is(source_port, port));
            tunnel = l.either(tunnel, is_either);
        }
        for port in UDP_DESTINATIONS {
            tunnel = l.either(tunnel, is(destination_port, port.into()));
        }
        // Those that are configured: the walk looks at which end they are.
        for &port in unusual() {
            let port = u32::from(port);
            let is_either = l.either(is(destination_port, port), is(source_port, port));
            tunnel = l.either(tunnel, is_either);
        }
        let total_len = low_16(total);
        let link_len = l.set(14);
        let both = |a, b| l.both(a, b);
        // IPv4 without options in Ethernet, no fragment.
        let known = both(
            both(
                is(l.and(ether, l.set(0x00ff_ffff)), 0x0045_0008),
                is(l.and(total, l.set(0x3fff_0000)), 0),
            ),
            both(l.either(tcp, udp), l.le(l.set(50), captured_len)),
        );
        let known = both(
            both(known, l.either(l.not(tcp), l.le(l.set(20), transport_len))),
            both(
                l.not(both(udp, tunnel)),
                l.le(l.sub(header_len, link_len), total_len),
            ),
        );
        // Whole, as the IP header says, or cut short after the headers.
        let known = both(
            known,
            l.either(
                l.le(l.add(total_len, link_len), captured_len),
                l.not(l.le(captured_len, header_len)),
            ),
        );

        let tcp_flags = l.only(tcp, l.shr(various, 24));
        let size = l.min(l.max(captured_len, wire_len), l.set(0xffff));
        l.store(source, of_mut(&mut columns.source, group));
        l.store(destination, of_mut(&mut columns.destination, group));
        l.store(source_port, of_mut(&mut columns.source_port, group));
        l.store(
            destination_port,
            of_mut(&mut columns.destination_port, group),
        );
        l.store(header_len, of_mut(&mut columns.header_len, group));
        l.store(protocol, of_mut(&mut columns.protocol, group));
        l.store(tcp_flags, of_mut(&mut columns.tcp_flags, group));
        let tcp_window = l.only(tcp, low_16(window));
        l.store(tcp_window, of_mut(&mut columns.tcp_window, group));
        l.store(size, of_mut(&mut columns.size, group));
        l.store(l.and(various, l.set(0xff)), of_mut(&mut columns.ttl, group));
        l.store(l.shr(ether, 24), of_mut(&mut columns.tos, group));

        let ends = (
            end(l, source, source_port),
            end(l, destination, destination_port),
        );
        let (found, low_to_high) = flows(l, key, ends, l.widen(protocol));
        l.store_64(found, of_mut(&mut columns.fingerprint, group));
        columns.plain[group] = l.bits(known);
        columns.low_to_high[group] = low_to_high;
        columns.answers[group] = l.bits(is(l.and(tcp_flags, l.set(0x12)), 0x12));
    }
}
