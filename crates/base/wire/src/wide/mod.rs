//! Headers and flows of a batch as columns, found 16 packets at a time.
//!
//! Plain packets are read as [`Plain::read`](crate::Plain::read) and
//! [`Plain::flow`](crate::Plain::flow) read them. Vector code is written once, in [`Lanes`], and run
//! with the instructions of the machine, [`Simd`]; those are in the modules `avx512`, `avx2` and
//! `neon`, here and in `bytes`, alone.
#![allow(
    clippy::arithmetic_side_effects,
    reason = "lane arithmetic wraps; the rest are indices of lanes, groups and columns, all constants"
)]

/// Methods of [`Lanes`] each of which is some instructions.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! methods {
    ($(fn $name:ident($this:ident $(, $argument:ident: $kind:ty)*) -> $result:ty $body:block)*) => {
        $(#[inline(always)]
        #[allow(unused_unsafe, reason = "some need none")]
        fn $name($this $(, $argument: $kind)*) -> $result {
            // SAFETY: holding `self` proves that the machine has the instructions; loads and
            // stores are within the arrays.
            unsafe { $body }
        })*
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bytes;
mod joined;
mod lanes;
mod look;
#[cfg(target_arch = "aarch64")]
mod neon;
mod rows;

pub use bytes::{ByteLanes, ByteRow};
pub use joined::joined;
pub use lanes::{Kernel, Lanes};
pub use rows::{RowCells, RowPlace, RowTable};

use look::Look;

use crate::words::flow::FlowHasher;

/// Packets in a batch in columns.
pub const WIDE: usize = 256;
/// Packets processed at a time: as many as a 512-bit register has 32-bit lanes.
pub const GROUP: usize = 16;
/// Groups of a batch.
pub const GROUPS: usize = WIDE / GROUP;

/// A bit for each packet of a batch, 64 to a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(32))]
pub struct BitRow(pub [u64; WIDE / 64]);

/// Instructions for 16 lanes at once that this machine has: the holder of this value may run
/// kernels with them.
#[derive(Clone, Copy, Debug)]
pub enum Simd {
    /// A register for each 16 numbers of 32 bits.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// Two registers for them.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// Four registers for them.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

/// Proof that this machine has the parts of AVX-512 that the data path uses (F, BW, DQ, VL, CD,
/// VBMI) and all earlier instructions.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

/// Proof that this machine has AVX2 and what came with it (BMI1, BMI2, LZCNT, POPCNT).
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

/// Proof that this machine has NEON.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

impl Simd {
    /// AVX-512, on a machine that has it.
    #[must_use]
    pub fn avx512() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            let has_all = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512cd")
                && is_x86_feature_detected!("avx512vbmi");
            (has_all && Self::avx2().is_some()).then_some(Self::Avx512(Avx512(())))
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// AVX2, on a machine that has it.
    #[must_use]
    pub fn avx2() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            let has_all = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt");
            has_all.then_some(Self::Avx2(Avx2(())))
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// NEON, on a machine that has it.
    #[must_use]
    pub fn neon() -> Option<Self> {
        #[cfg(target_arch = "aarch64")]
        return std::arch::is_aarch64_feature_detected!("neon").then_some(Self::Neon(Neon(())));
        #[cfg(not(target_arch = "aarch64"))]
        None
    }

    /// The widest that this machine has.
    #[must_use]
    pub fn best() -> Option<Self> {
        Self::available().pop()
    }

    /// Those that this machine has, the widest last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        [Self::neon(), Self::avx2(), Self::avx512()]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Calls a function compiled for these instructions, as far as it is inlined.
    #[inline]
    pub fn call<R>(self, function: impl FnOnce() -> R) -> R {
        struct Call<F>(F);

        impl<R, F: FnOnce() -> R> Kernel for Call<F> {
            type Output = R;

            #[inline(always)]
            fn run<L: Lanes>(self, _: L) -> R {
                self.0()
            }
        }

        self.run(Call(function))
    }

    /// [`Lanes::FOURS`] of these instructions.
    #[must_use]
    pub fn fours(self) -> [u8; 16] {
        struct Fours;

        impl Kernel for Fours {
            type Output = [u8; 16];

            #[inline(always)]
            fn run<L: Lanes>(self, _: L) -> [u8; 16] {
                L::FOURS
            }
        }

        self.run(Fours)
    }

    /// Runs a kernel with these instructions.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        drop(kernel);
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => avx512::run(proof, kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) => avx2::run(proof, kernel),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(proof) => neon::run(proof, kernel),
        }
    }
}

/// What is known about the packets of a batch, a column for each field. Sets of lanes are masks,
/// one per group. A lane not in `dissected` has arbitrary values except for its lengths and time.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct PacketColumns {
    /// Keyed fingerprint of the flow.
    pub fingerprint: [u64; WIDE],
    /// Arrival, ns since 1970.
    pub ts_ns: [u64; WIDE],
    /// Captured bytes.
    pub captured_len: [u32; WIDE],
    /// Bytes on the wire, as the capture says.
    pub wire_len: [u32; WIDE],
    /// The greater of the two, at most 65,535.
    pub size: [u32; WIDE],
    /// Bytes of all headers.
    pub header_len: [u32; WIDE],
    /// Source address, of plain packets.
    pub source: [u32; WIDE],
    /// Destination address, of plain packets.
    pub destination: [u32; WIDE],
    /// Source port, else 0.
    pub source_port: [u32; WIDE],
    /// Destination port, else 0.
    pub destination_port: [u32; WIDE],
    /// IP protocol number, else 0.
    pub protocol: [u32; WIDE],
    /// TCP flags, else 0.
    pub tcp_flags: [u32; WIDE],
    /// TCP window, else 0.
    pub tcp_window: [u32; WIDE],
    /// Time to live or hop limit.
    pub ttl: [u32; WIDE],
    /// Type of service or traffic class.
    pub tos: [u32; WIDE],
    /// Has plain headers.
    pub plain: [u16; GROUPS],
    /// Has a flow, so that it can be classified.
    pub dissected: [u16; GROUPS],
    /// Goes from the flow key's low to its high endpoint.
    pub low_to_high: [u16; GROUPS],
    /// TCP SYN with ACK.
    pub answers: [u16; GROUPS],
}

impl Default for PacketColumns {
    fn default() -> Self {
        Self {
            fingerprint: [0; WIDE],
            ts_ns: [0; WIDE],
            captured_len: [0; WIDE],
            wire_len: [0; WIDE],
            size: [0; WIDE],
            header_len: [0; WIDE],
            source: [0; WIDE],
            destination: [0; WIDE],
            source_port: [0; WIDE],
            destination_port: [0; WIDE],
            protocol: [0; WIDE],
            tcp_flags: [0; WIDE],
            tcp_window: [0; WIDE],
            ttl: [0; WIDE],
            tos: [0; WIDE],
            plain: [0; GROUPS],
            dissected: [0; GROUPS],
            low_to_high: [0; GROUPS],
            answers: [0; GROUPS],
        }
    }
}

impl PacketColumns {
    /// Reads the headers of those plain packets of a group that start with Ethernet, and finds
    /// their flows. `packets` are the captured bytes, whose lengths are already in `captured_len`;
    /// `wire_len` is set too.
    ///
    /// # Panics
    ///
    /// If there is no such group.
    #[inline]
    pub fn look(
        &mut self,
        simd: Simd,
        hasher: &FlowHasher,
        group: usize,
        packets: &[&[u8]; GROUP],
    ) {
        assert!(group < GROUPS);
        simd.run(Look {
            columns: self,
            key: hasher.key(),
            group,
            packets,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plain;
    use crate::formats::tunnel::{UDP_DESTINATIONS, UDP_EITHER};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        /// 16 packets that are nearly plain, compared with [`Plain`] one by one.
        #[test]
        fn a_group_is_looked_at_as_packet_by_packet(
            packets in prop::collection::vec(
                (
                    prop::collection::vec(any::<u8>(), 0..90),
                    prop::sample::select(vec![6_u8, 6, 17, 17, 1]),
                    prop::sample::select(
                        [&[53, 443], &UDP_EITHER[..], &UDP_DESTINATIONS[..]].concat(),
                    ),
                    20_u16..90, 4_u8..16, any::<u32>(),
                    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
                ),
                GROUP,
            ),
            group in 0..GROUPS,
        ) {
            let mut columns = PacketColumns::default();
            let mut all = Vec::new();
            for (lane, (mut packet, number, port, total_len, offset, wire_len, changes)) in packets.into_iter().enumerate() {
                if packet.len() >= 48 {
                    packet[12..16].copy_from_slice(&[8, 0, 0x45, 7]);
                    packet[16..18].copy_from_slice(&total_len.to_be_bytes());
                    packet[20..22].copy_from_slice(&[0x40, 0]);
                    packet[23] = number;
                    packet[36..38].copy_from_slice(&u16::to_be_bytes(port));
                    packet[46] = offset << 4;
                    for (index, value) in changes {
                        *index.get_mut(&mut packet) = value;
                    }
                }
                let at = group * GROUP + lane;
                columns.captured_len[at] = u32::try_from(packet.len()).unwrap();
                columns.wire_len[at] = wire_len >> (wire_len % 32);
                all.push(packet);
            }
            let heads: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
            let hasher = FlowHasher::new([3, 4]);
            let packets = heads.as_slice().try_into().unwrap();
            let expected: Vec<Option<Plain>> = all.iter().map(|packet| Plain::read(packet)).collect();
            for simd in Simd::available() {
                columns.look(simd, &hasher, group, packets);
                assert_columns(&columns, group, &expected, &hasher);
            }
        }
    }

    /// The first lanes of a slice; the page after it is not read (Miri and ASan would say so).
    #[test]
    fn the_first_lanes_of_a_slice_are_loaded_and_zeros_follow() {
        struct First<'a>(&'a [u32]);

        impl Kernel for First<'_> {
            type Output = [u32; GROUP];

            #[inline(always)]
            fn run<L: Lanes>(self, l: L) -> [u32; GROUP] {
                let mut to = [7; GROUP];
                l.store(l.load_first(self.0), &mut to);
                to
            }
        }

        let values: Vec<u32> = (1..=40).map(|n| n << 20 | 0x8000_000f).collect();
        for simd in Simd::available() {
            for len in 0..=values.len() {
                let some = &values[values.len() - len..];
                let mut wanted = [0; GROUP];
                for (wanted, value) in wanted.iter_mut().zip(some) {
                    *wanted = *value;
                }
                assert_eq!(simd.run(First(some)), wanted, "{simd:?}, {len} values");
            }
        }
    }

    /// Compares a group of columns with [`Plain`] one by one.
    fn assert_columns(
        columns: &PacketColumns,
        group: usize,
        expected: &[Option<Plain>],
        hasher: &FlowHasher,
    ) {
        for (lane, plain) in expected.iter().enumerate() {
            let at = group * GROUP + lane;
            assert_eq!(
                columns.plain[group] >> lane & 1 != 0,
                plain.is_some(),
                "lane {lane}"
            );
            let Some(plain) = plain else { continue };
            let (fingerprint, low_to_high) = plain.flow(hasher);
            assert_eq!(columns.fingerprint[at], fingerprint);
            assert_eq!(columns.low_to_high[group] >> lane & 1 != 0, low_to_high);
            assert_eq!(
                columns.answers[group] >> lane & 1 != 0,
                plain.tcp_flags & 0x12 == 0x12
            );
            let size = columns.wire_len[at]
                .max(columns.captured_len[at])
                .min(65_535);
            assert_eq!(columns.size[at], size);
            assert_eq!(columns.header_len[at], u32::from(plain.header_len()));
            assert_eq!(columns.source[at], plain.source);
            assert_eq!(columns.destination[at], plain.destination);
            assert_eq!(columns.source_port[at], u32::from(plain.source_port));
            assert_eq!(
                columns.destination_port[at],
                u32::from(plain.destination_port)
            );
            assert_eq!(columns.protocol[at], u32::from(plain.protocol));
            assert_eq!(columns.tcp_flags[at], u32::from(plain.tcp_flags));
            assert_eq!(columns.tcp_window[at], u32::from(plain.tcp_window));
            assert_eq!(columns.ttl[at], u32::from(plain.ttl));
            assert_eq!(columns.tos[at], u32::from(plain.tos));
        }
    }
}
