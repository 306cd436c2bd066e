//! The vector code of [`PacketColumns::look`].
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Avx512, GROUP, GROUPS, PacketColumns, WIDE};
use crate::tunnel::{UDP_DESTINATIONS, UDP_EITHER};

/// Where the fields of plain headers are in a packet, as [`fields`] returns them: 32-bit words in
/// the CPU's byte order. Twice, for two packets: bit 6 says which.
///
/// ```text
///  0 source address         16 total length, fragment
///  4 destination address    20 TTL, protocol, TCP offset, TCP flags
///  8 ports                  24 TCP window
/// 12 EtherType, version, TOS
/// ```
static PLACES: [u8; 64] = {
    const FIELDS: [u8; 32] = [
        29, 28, 27, 26, 33, 32, 31, 30, 35, 34, 37, 36, 12, 13, 14, 15, 17, 16, 21, 20, 22, 23, 46,
        47, 49, 48, 0, 0, 0, 0, 0, 0,
    ];
    let mut places = [0; 64];
    let mut at = 0;
    while at < FIELDS.len() {
        places[at] = FIELDS[at];
        places[at + FIELDS.len()] = FIELDS[at] | 64;
        at += 1;
    }
    places
};

/// Everything that the functions below need; they are inlined into one that has it.
macro_rules! vector {
    ($(#[$meta:meta])* fn $name:ident($($arguments:tt)*) $(-> $result:ty)? $body:block) => {
        $(#[$meta])*
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,bmi1,bmi2")]
        fn $name($($arguments)*) $(-> $result)? $body
    };
}

vector! {
    fn set(value: u32) -> __m512i {
        _mm512_set1_epi32(value.cast_signed())
    }
}

vector! {
    fn set_64(value: u64) -> __m512i {
        _mm512_set1_epi64(value.cast_signed())
    }
}

vector! {
    /// A group's 16 values of a column.
    fn load(column: &[u32; WIDE], group: usize) -> __m512i {
        let values: &[u32; GROUP] = &column.as_chunks().0[group];
        // SAFETY: a load of the 64 bytes of the array.
        unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
    }
}

vector! {
    fn store(column: &mut [u32; WIDE], group: usize, values: __m512i) {
        let place: &mut [u32; GROUP] = &mut column.as_chunks_mut().0[group];
        // SAFETY: a store of the 64 bytes of the array.
        unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), values) }
    }
}

vector! {
    /// The first 64 bytes of a packet, zeros after its end.
    fn head(packet: &[u8]) -> __m512i {
        #[allow(clippy::cast_possible_truncation, reason = "at most 64")]
        let mask = _bzhi_u64(u64::MAX, packet.len().min(64) as u32);
        // SAFETY: no byte after the end of the packet is read.
        unsafe { _mm512_maskz_loadu_epi8(mask, packet.as_ptr().cast()) }
    }
}

vector! {
    /// Four rows of four 32-bit words become, in each quarter, four columns.
    fn cross(rows: [__m512i; 4]) -> [__m512i; 4] {
        let [a, b, c, d] = rows;
        let (ab, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}

vector! {
    /// The words of [`PLACES`], for 16 packets each.
    fn fields(packets: &[&[u8]; GROUP]) -> [__m512i; 7] {
        // SAFETY: a load of the 64 bytes of the table.
        let places = unsafe { _mm512_loadu_si512(PLACES.as_ptr().cast()) };
        let pair = |a: usize, b: usize| {
            _mm512_permutex2var_epi8(head(packets[a]), places, head(packets[b]))
        };
        let first = cross([pair(0, 4), pair(1, 5), pair(2, 6), pair(3, 7)]);
        let second = cross([pair(8, 12), pair(9, 13), pair(10, 14), pair(11, 15)]);
        [
            _mm512_shuffle_i32x4::<0x88>(first[0], second[0]),
            _mm512_shuffle_i32x4::<0x88>(first[1], second[1]),
            _mm512_shuffle_i32x4::<0x88>(first[2], second[2]),
            _mm512_shuffle_i32x4::<0x88>(first[3], second[3]),
            _mm512_shuffle_i32x4::<0xdd>(first[0], second[0]),
            _mm512_shuffle_i32x4::<0xdd>(first[1], second[1]),
            _mm512_shuffle_i32x4::<0xdd>(first[2], second[2]),
        ]
    }
}

vector! {
    /// Low and high words of products of 64 by 64 bits.
    fn multiply(a: __m512i, b: __m512i) -> (__m512i, __m512i) {
        let (a_high, b_high) = (_mm512_srli_epi64::<32>(a), _mm512_srli_epi64::<32>(b));
        let low = _mm512_mul_epu32(a, b);
        let (ab, ba) = (_mm512_mul_epu32(a, b_high), _mm512_mul_epu32(a_high, b));
        let high = _mm512_mul_epu32(a_high, b_high);
        let half = set_64(0xffff_ffff);
        let middle = _mm512_add_epi64(
            _mm512_add_epi64(_mm512_srli_epi64::<32>(low), _mm512_and_si512(ab, half)),
            _mm512_and_si512(ba, half),
        );
        (
            _mm512_or_si512(_mm512_and_si512(low, half), _mm512_slli_epi64::<32>(middle)),
            _mm512_add_epi64(
                _mm512_add_epi64(high, _mm512_srli_epi64::<32>(ab)),
                _mm512_add_epi64(_mm512_srli_epi64::<32>(ba), _mm512_srli_epi64::<32>(middle)),
            ),
        )
    }
}

vector! {
    /// [`mix64`](crate::mix64) of eight values.
    fn mix(value: __m512i) -> __m512i {
        let value = _mm512_xor_si512(value, _mm512_srli_epi64::<30>(value));
        let value = _mm512_mullo_epi64(value, set_64(0xbf58_476d_1ce4_e5b9));
        let value = _mm512_xor_si512(value, _mm512_srli_epi64::<27>(value));
        let value = _mm512_mullo_epi64(value, set_64(0x94d0_49bb_1331_11eb));
        _mm512_xor_si512(value, _mm512_srli_epi64::<31>(value))
    }
}

vector! {
    /// [`FlowHasher::ipv4`](crate::FlowHasher::ipv4) of eight flows, whose ends are address and
    /// port in 48 bits, and which of them go from the low to the high one.
    fn flows(key: &[u64; 8], source: __m512i, destination: __m512i, protocol: __m512i) -> (__m512i, __mmask8) {
        let low_to_high = _mm512_cmple_epu64_mask(source, destination);
        let low = _mm512_min_epu64(source, destination);
        let high = _mm512_max_epu64(source, destination);
        let port = set_64(0xffff);
        let ports = _mm512_or_si512(
            _mm512_and_si512(low, port),
            _mm512_slli_epi64::<16>(_mm512_and_si512(high, port)),
        );
        let family = set_64(4 << 40);
        let tail = _mm512_or_si512(
            ports,
            _mm512_or_si512(_mm512_slli_epi64::<32>(protocol), family),
        );
        let plus = |value, word: usize| _mm512_add_epi64(value, set_64(key[word]));
        let (first, first_high) =
            multiply(plus(tail, 0), plus(_mm512_srli_epi64::<16>(low), 1));
        let (second, second_high) =
            multiply(plus(_mm512_srli_epi64::<16>(high), 2), set_64(key[3]));
        let sum = _mm512_add_epi64(first, second);
        let carry = _mm512_cmplt_epu64_mask(sum, first);
        let sum_high = _mm512_add_epi64(first_high, second_high);
        let sum_high = _mm512_mask_add_epi64(sum_high, carry, sum_high, set_64(1));
        let folded = _mm512_xor_si512(sum, _mm512_rol_epi64::<29>(sum_high));
        let mixed = mix(_mm512_xor_si512(folded, set_64(key[6] ^ key[7])));
        (_mm512_max_epu64(mixed, set_64(1)), low_to_high)
    }
}

vector! {
    /// One half of 16 values, widened to 64 bits.
    fn widen(values: __m512i, upper: bool) -> __m512i {
        if upper {
            _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64::<1>(values))
        } else {
            _mm512_cvtepu32_epi64(_mm512_castsi512_si256(values))
        }
    }
}

/// See [`PacketColumns::look`].
pub(super) fn look(
    columns: &mut PacketColumns,
    _: Avx512,
    key: &[u64; 8],
    (group, packets): (usize, &[&[u8]; GROUP]),
) {
    // SAFETY: holding the value proves that the machine has the instructions.
    unsafe { enabled(columns, key, group, packets) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,bmi1,bmi2")]
fn enabled(columns: &mut PacketColumns, key: &[u64; 8], group: usize, packets: &[&[u8]; GROUP]) {
    let group = group % GROUPS;
    let [source, destination, ports, ether, total, various, window] = fields(packets);
    let captured_len = load(&columns.captured_len, group);
    let wire_len = load(&columns.wire_len, group);
    let and = |a, b| _mm512_and_si512(a, b);
    let is = |values, value| _mm512_cmpeq_epi32_mask(values, set(value));

    let protocol = and(_mm512_srli_epi32::<8>(various), set(0xff));
    let (tcp, udp) = (is(protocol, 6), is(protocol, 17));
    let tcp_len = and(_mm512_srli_epi32::<18>(various), set(0x3c));
    let transport_len = _mm512_mask_mov_epi32(set(8), tcp, tcp_len);
    let header_len = _mm512_add_epi32(transport_len, set(34));
    let source_port = and(ports, set(0xffff));
    let destination_port = _mm512_srli_epi32::<16>(ports);
    // As `tunnel::has_udp_port`.
    let either = u32::from(UDP_EITHER);
    let mut tunnel = is(destination_port, either) | is(source_port, either);
    for port in UDP_DESTINATIONS {
        tunnel |= is(destination_port, u32::from(port));
    }
    let total_len = and(total, set(0xffff));
    let link_len = set(14);
    let known = (tcp | udp)
        // IPv4 without options in Ethernet, no fragment.
        & is(and(ether, set(0x00ff_ffff)), 0x0045_0008)
        & _mm512_testn_epi32_mask(total, set(0x3fff_0000))
        & _mm512_cmpge_epu32_mask(captured_len, set(50))
        & (!tcp | _mm512_cmpge_epu32_mask(transport_len, set(20)))
        & !(udp & tunnel)
        & _mm512_cmpge_epu32_mask(total_len, _mm512_sub_epi32(header_len, link_len))
        // Whole, as the IP header says, or cut short after the headers.
        & (_mm512_cmple_epu32_mask(_mm512_add_epi32(total_len, link_len), captured_len)
            | _mm512_cmplt_epu32_mask(header_len, captured_len));

    let tcp_flags = _mm512_maskz_srli_epi32::<24>(tcp, various);
    let size = _mm512_min_epu32(_mm512_max_epu32(captured_len, wire_len), set(0xffff));
    store(&mut columns.source, group, source);
    store(&mut columns.destination, group, destination);
    store(&mut columns.source_port, group, source_port);
    store(&mut columns.destination_port, group, destination_port);
    store(&mut columns.header_len, group, header_len);
    store(&mut columns.protocol, group, protocol);
    store(&mut columns.tcp_flags, group, tcp_flags);
    let tcp_window = _mm512_maskz_mov_epi32(tcp, and(window, set(0xffff)));
    store(&mut columns.tcp_window, group, tcp_window);
    store(&mut columns.size, group, size);
    store(&mut columns.ttl, group, and(various, set(0xff)));
    store(&mut columns.tos, group, _mm512_srli_epi32::<24>(ether));

    let mut low_to_high = [0; 2];
    let fingerprints: &mut [u64; GROUP] = &mut columns.fingerprint.as_chunks_mut().0[group];
    let halves = fingerprints.as_chunks_mut::<8>().0;
    for (half, (place, mask)) in halves.iter_mut().zip(&mut low_to_high).enumerate() {
        let end = |address, port| {
            let address = _mm512_slli_epi64::<16>(widen(address, half == 1));
            _mm512_or_si512(address, widen(port, half == 1))
        };
        let (from, to) = (end(source, source_port), end(destination, destination_port));
        let (found, forward) = flows(key, from, to, widen(protocol, half == 1));
        *mask = forward;
        // SAFETY: a store of the 64 bytes of the array.
        unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), found) };
    }
    columns.plain[group] = known;
    columns.low_to_high[group] = u16::from_le_bytes(low_to_high);
    columns.answers[group] = is(and(tcp_flags, set(0x12)), 0x12);
}
