//! [`Lanes`](super::Lanes) of a byte: 64 of them, as many as a 512-bit register has.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

/// A byte for each of 64 packets, in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct ByteRow(pub [u8; 64]);

/// Operations on 64 lanes of a byte, which are unsigned numbers.
pub trait ByteLanes: Copy {
    /// 64 numbers of 8 bits.
    type U8: Copy;

    /// The same in all lanes.
    fn set_8(self, value: u8) -> Self::U8;
    /// Lanes in order.
    fn load_8(self, values: &ByteRow) -> Self::U8;
    /// Lanes in order.
    fn store_8(self, values: Self::U8, to: &mut ByteRow);
    /// Bits in either.
    fn or_8(self, a: Self::U8, b: Self::U8) -> Self::U8;
    /// Differences, wrapping.
    fn sub_8(self, a: Self::U8, b: Self::U8) -> Self::U8;
    /// One less where `a` is at most `b`, wrapping.
    fn less_8(self, values: Self::U8, a: Self::U8, b: Self::U8) -> Self::U8;
    /// `yes` where `a` and `b` are equal, else `no`.
    fn choose_8(self, a: Self::U8, b: Self::U8, yes: Self::U8, no: Self::U8) -> Self::U8;

    /// What tables have at the same places, all of which are less than `used`; arbitrary for others.
    fn look_up<const TABLES: usize>(
        self,
        tables: [&[u8; 128]; TABLES],
        used: usize,
        places: Self::U8,
    ) -> [Self::U8; TABLES];

    /// What a table has at places less than `used`; arbitrary for others.
    #[inline(always)]
    fn look_up_16(self, table: &[u16; 256], used: usize, places: Self::U8, to: &mut [u16; 64]) {
        let _ = used;
        let mut at = ByteRow([0; 64]);
        self.store_8(places, &mut at);
        for (to, place) in to.iter_mut().zip(at.0) {
            *to = table[usize::from(place)];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GROUP, Kernel, Lanes, Simd};
    use super::*;
    use proptest::prelude::*;

    fn row() -> impl Strategy<Value = ByteRow> {
        prop::collection::vec(any::<u8>(), 64)
            .prop_map(|bytes| ByteRow(bytes.try_into().expect("64")))
    }

    /// Operations on rows of bytes, in the order of [`naive`].
    struct Operations<'a>([&'a ByteRow; 4]);

    impl Kernel for Operations<'_> {
        type Output = [ByteRow; 5];

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> [ByteRow; 5] {
            let [a, b, c, d] = self.0;
            let (a, b, c, d) = (l.load_8(a), l.load_8(b), l.load_8(c), l.load_8(d));
            let mut to = [ByteRow([0; 64]); 5];
            l.store_8(l.set_8(to.len().to_le_bytes()[0]), &mut to[0]);
            l.store_8(l.or_8(a, b), &mut to[1]);
            l.store_8(l.sub_8(a, b), &mut to[2]);
            l.store_8(l.less_8(c, a, b), &mut to[3]);
            l.store_8(l.choose_8(a, b, c, d), &mut to[4]);
            to
        }
    }

    fn naive([a, b, c, d]: [u8; 4]) -> [u8; 5] {
        [
            5,
            a | b,
            a.wrapping_sub(b),
            c.wrapping_sub((a <= b).into()),
            if a == b { c } else { d },
        ]
    }

    /// Two tables of bytes and one of numbers at the same places.
    struct LookUp<'a> {
        tables: [&'a [u8; 128]; 2],
        numbers: &'a [u16; 256],
        used: usize,
        places: &'a ByteRow,
    }

    impl Kernel for LookUp<'_> {
        type Output = ([ByteRow; 2], [u16; 64]);

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> Self::Output {
            let places = l.load_8(self.places);
            let mut bytes = [ByteRow([0; 64]); 2];
            let found = l.look_up(self.tables, self.used.min(128), places);
            l.store_8(found[0], &mut bytes[0]);
            l.store_8(found[1], &mut bytes[1]);
            let mut numbers = [0; 64];
            l.look_up_16(self.numbers, self.used, places, &mut numbers);
            (bytes, numbers)
        }
    }

    /// What a table has at places of a step, and the low bytes of that.
    struct LookUpStep<'a> {
        table: &'a [u32; 256],
        step: u32,
        places: &'a [[u32; GROUP]; 4],
    }

    impl Kernel for LookUpStep<'_> {
        type Output = ([[u32; GROUP]; 4], ByteRow);

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> Self::Output {
            let mut numbers = [[0; GROUP]; 4];
            let mut all = [l.set(0); 4];
            for ((found, places), to) in all.iter_mut().zip(self.places).zip(&mut numbers) {
                *found = l.look_up_step(self.table, self.step, l.load(places));
                l.store(*found, to);
            }
            let mut bytes = ByteRow([0; 64]);
            l.store_8(l.low_bytes(all), &mut bytes);
            (numbers, bytes)
        }
    }

    proptest! {
        #[test]
        fn lanes_of_bytes_are_as_bytes_one_by_one(
            rows in prop::array::uniform4(row()),
            same in any::<bool>(),
        ) {
            let mut rows = rows;
            if same {
                let first = rows[0];
                rows[1].0[..32].copy_from_slice(&first.0[..32]);
            }
            let [a, b, c, d] = &rows;
            for simd in Simd::available() {
                let found = simd.run(Operations([a, b, c, d]));
                for lane in 0..64 {
                    let own = found.map(|row| row.0[lane]);
                    prop_assert_eq!(own, naive(rows.map(|row| row.0[lane])), "{:?}", simd);
                }
            }
        }

        #[test]
        fn lanes_are_looked_up_as_one_by_one(
            bytes in prop::collection::vec(any::<u8>(), 256),
            numbers in prop::collection::vec(any::<u16>(), 256),
            places in row(),
            used in 1_usize..=256,
        ) {
            let [low, high] = [0, 1].map(|half| &bytes.as_chunks::<128>().0[half]);
            let numbers: &[u16; 256] = numbers.as_slice().try_into().expect("256");
            let places = ByteRow(places.0.map(|place| (usize::from(place) % used).to_le_bytes()[0]));
            for simd in Simd::available() {
                let look_up = LookUp { tables: [low, high], numbers, used, places: &places };
                let (found, of_numbers) = simd.run(look_up);
                for (lane, place) in places.0.into_iter().map(usize::from).enumerate() {
                    prop_assert_eq!(of_numbers[lane], numbers[place], "{:?}", simd);
                    if used <= 128 {
                        let wanted = [low[place], high[place]];
                        prop_assert_eq!(found.map(|row| row.0[lane]), wanted, "{:?}", simd);
                    }
                }
            }
        }

        #[test]
        fn steps_are_looked_up_as_one_by_one(
            table in prop::collection::vec(any::<u32>(), 256),
            places in prop::collection::vec(any::<u32>(), 64),
            step in 0_u32..8,
        ) {
            let table: &[u32; 256] = table.as_slice().try_into().expect("256");
            let places: Vec<u32> = places.into_iter().map(|place| (1 << step) + place % (1 << step)).collect();
            let groups: &[[u32; GROUP]; 4] = places.as_chunks().0.try_into().expect("four");
            for simd in Simd::available() {
                let (found, bytes) = simd.run(LookUpStep { table, step, places: groups });
                for (lane, place) in places.iter().enumerate() {
                    let wanted = table[*place as usize];
                    prop_assert_eq!(found.as_flattened()[lane], wanted, "{:?}", simd);
                    prop_assert_eq!(bytes.0[lane], wanted.to_le_bytes()[0], "{:?}", simd);
                }
            }
        }
    }
}
