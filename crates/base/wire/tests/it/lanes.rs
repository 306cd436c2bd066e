//! Every operation of [`Lanes`], with all instructions that this machine has, against what it says
//! that it does, one lane after another.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "parts of numbers are meant"
)]

use std::array::from_fn;

use proptest::prelude::*;
use strata_wire::wide::{BitRow, GROUP, Kernel, Lanes, Simd};

/// Numbers at which vector code goes wrong, and any.
fn number() -> impl Strategy<Value = u32> {
    let edges = [
        0,
        1,
        2,
        127,
        128,
        255,
        256,
        0x7fff,
        0x8000,
        0xffff,
        0x1_0000,
        0x7fff_ffff,
        0x8000_0000,
        u32::MAX,
    ];
    prop_oneof![prop::sample::select(edges.to_vec()), 0_u32..6, any::<u32>()]
}

fn lanes() -> impl Strategy<Value = [u32; GROUP]> {
    prop::collection::vec(number(), GROUP).prop_map(|all| all.try_into().unwrap())
}

fn long() -> impl Strategy<Value = [u64; GROUP]> {
    (lanes(), lanes())
        .prop_map(|(high, low)| from_fn(|n| u64::from(high[n]) << 32 | u64::from(low[n])))
}

/// What operations are given.
#[derive(Clone, Debug)]
struct Given {
    a: [u32; GROUP],
    b: [u32; GROUP],
    long_a: [u64; GROUP],
    long_b: [u64; GROUP],
    bits: u16,
    other_bits: u16,
    shift: u32,
    value: u32,
    many: [u32; 64],
}

fn given() -> impl Strategy<Value = Given> {
    let many = prop::collection::vec(number(), 64);
    let bits = (any::<u16>(), any::<u16>());
    (
        lanes(),
        lanes(),
        long(),
        long(),
        bits,
        0_u32..32,
        number(),
        many,
    )
        .prop_map(
            |(a, b, long_a, long_b, (bits, other_bits), shift, value, many)| Given {
                a,
                b,
                long_a,
                long_b,
                bits,
                other_bits,
                shift,
                value,
                many: many.try_into().unwrap(),
            },
        )
}

fn mask_of(is_set: impl Fn(usize) -> bool) -> u16 {
    (0..GROUP).map(|lane| u16::from(is_set(lane)) << lane).sum()
}

/// The halves of a number.
fn halves(value: u32) -> [u16; 2] {
    [value as u16, (value >> 16) as u16]
}

fn by_halves(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    let ([a, a_high], [b, b_high]) = (halves(a), halves(b));
    u32::from(f(a, b)) | u32::from(f(a_high, b_high)) << 16
}

/// Compares operations on numbers of 32 bits.
struct Words32(Given);

impl Kernel for Words32 {
    type Output = ();

    fn run<L: Lanes>(self, l: L) {
        let Given {
            a, b, shift, value, ..
        } = self.0;
        let (x, y) = (l.load(&a), l.load(&b));
        let stored = |values: L::U32| {
            let mut to = [0; GROUP];
            l.store(values, &mut to);
            to
        };
        let each = |f: &dyn Fn(u32, u32) -> u32| from_fn(|n| f(a[n], b[n]));
        assert_eq!(stored(x), a);
        for count in 0..=GROUP {
            let first = from_fn(|n| if n < count { a[n] } else { 0 });
            assert_eq!(stored(l.load_first(&a[..count])), first);
        }
        assert_eq!(stored(l.set(value)), [value; GROUP]);
        assert_eq!(stored(l.add(x, y)), each(&u32::wrapping_add));
        assert_eq!(stored(l.sub(x, y)), each(&u32::wrapping_sub));
        assert_eq!(stored(l.mul(x, y)), each(&u32::wrapping_mul));
        assert_eq!(stored(l.min(x, y)), each(&|a, b| a.min(b)));
        assert_eq!(stored(l.max(x, y)), each(&|a, b| a.max(b)));
        assert_eq!(stored(l.and(x, y)), each(&|a, b| a & b));
        assert_eq!(stored(l.or(x, y)), each(&|a, b| a | b));
        assert_eq!(stored(l.shl(x, shift)), each(&|a, _| a << shift));
        assert_eq!(stored(l.shr(x, shift)), each(&|a, _| a >> shift));
        let (low, high) = l.square(x);
        let square = |a: u32| u64::from(a) * u64::from(a);
        assert_eq!(stored(low), each(&|a, _| square(a) as u32));
        assert_eq!(stored(high), each(&|a, _| (square(a) >> 32) as u32));
        let clamped = |a, b| by_halves(a, b, u16::saturating_add);
        assert_eq!(stored(l.add_halves(x, y)), each(&clamped));
        assert_eq!(
            stored(l.min_halves(x, y)),
            each(&|a, b| by_halves(a, b, u16::min))
        );
        assert_eq!(
            stored(l.max_halves(x, y)),
            each(&|a, b| by_halves(a, b, u16::max))
        );
        let rows: [[u32; GROUP]; GROUP] = from_fn(|row| from_fn(|n| a[row].wrapping_mul(b[n])));
        let columns = l.transpose(from_fn(|row| l.load(&rows[row])));
        for (n, column) in columns.into_iter().enumerate() {
            assert_eq!(stored(column), from_fn(|row| rows[row][n]));
        }
    }
}

/// Compares masks and packing.
struct Masks(Given);

impl Kernel for Masks {
    type Output = ();

    fn run<L: Lanes>(self, l: L) {
        let Given {
            a,
            b,
            bits,
            other_bits,
            ..
        } = self.0;
        let (x, y) = (l.load(&a), l.load(&b));
        let stored = |values: L::U32| {
            let mut to = [0; GROUP];
            l.store(values, &mut to);
            to
        };
        assert_eq!(l.bits(l.eq(x, y)), mask_of(|n| a[n] == b[n]));
        assert_eq!(l.bits(l.le(x, y)), mask_of(|n| a[n] <= b[n]));
        assert_eq!(l.bits(l.top(x)), mask_of(|n| a[n] >> 31 != 0));
        let earlier = |n: usize| (0..n).any(|m| a[m] == a[n] || b[m] == b[n]);
        assert_eq!(l.bits(l.repeats([x, y])), mask_of(earlier));
        let (mask, other) = (l.mask(bits), l.mask(other_bits));
        assert_eq!(l.bits(mask), bits);
        assert_eq!(l.bits(l.both(mask, other)), bits & other_bits);
        assert_eq!(l.bits(l.either(mask, other)), bits | other_bits);
        assert_eq!(l.bits(l.one_of(mask, other)), bits ^ other_bits);
        assert_eq!(l.bits(l.not(mask)), !bits);
        let is_set = |n: usize| bits >> n & 1 != 0;
        let chosen = from_fn(|n| if is_set(n) { a[n] } else { b[n] });
        assert_eq!(stored(l.choose(mask, x, y)), chosen);
        let only = from_fn(|n| if is_set(n) { a[n] } else { 0 });
        assert_eq!(stored(l.only(mask, x)), only);
        let packed: Vec<u32> = (0..GROUP).filter(|n| is_set(*n)).map(|n| a[n]).collect();
        let mut all = [7; GROUP];
        l.pack(l.packing(bits), x, &mut all);
        assert_eq!(&all[..packed.len()], packed);
        let mut some = [7; GROUP + 4];
        let places = usize::from(other_bits) % GROUP;
        l.pack_first(l.packing(bits), x, &mut some[..places]);
        let written = places.min(packed.len());
        assert_eq!(some[..written], packed[..written]);
        assert_eq!(some[places..], [7; GROUP + 4][places..]);
    }
}

/// Compares operations on numbers of 64 bits.
struct Words64(Given);

impl Kernel for Words64 {
    type Output = ();

    fn run<L: Lanes>(self, l: L) {
        let Given {
            a: short,
            long_a: a,
            long_b: b,
            shift,
            value,
            ..
        } = self.0;
        let (x, y) = (l.load_64(&a), l.load_64(&b));
        let stored = |values: L::U64| {
            let mut to = [0; GROUP];
            l.store_64(values, &mut to);
            to
        };
        let each = |f: &dyn Fn(u64, u64) -> u64| from_fn(|n| f(a[n], b[n]));
        let number = u64::from(value) << 32 | u64::from(!value);
        let half = |a: u64| a & u64::from(u32::MAX);
        assert_eq!(stored(x), a);
        assert_eq!(stored(l.set_64(number)), [number; GROUP]);
        assert_eq!(stored(l.widen(l.load(&short))), short.map(u64::from));
        let mut narrow = [0; GROUP];
        l.store(l.narrow(x), &mut narrow);
        assert_eq!(narrow, a.map(|a| a as u32));
        assert_eq!(stored(l.add_64(x, y)), each(&u64::wrapping_add));
        assert_eq!(stored(l.sub_64(x, y)), each(&u64::wrapping_sub));
        assert_eq!(stored(l.carry_64(x, y)), each(&|a, b| u64::from(a < b)));
        assert_eq!(
            stored(l.mul_low_halves(x, y)),
            each(&|a, b| half(a) * half(b))
        );
        assert_eq!(
            stored(l.mul_64(x, number)),
            each(&|a, _| a.wrapping_mul(number))
        );
        assert_eq!(stored(l.min_64(x, y)), each(&|a, b| a.min(b)));
        assert_eq!(stored(l.max_64(x, y)), each(&|a, b| a.max(b)));
        assert_eq!(stored(l.and_64(x, y)), each(&|a, b| a & b));
        assert_eq!(stored(l.or_64(x, y)), each(&|a, b| a | b));
        assert_eq!(stored(l.xor_64(x, y)), each(&|a, b| a ^ b));
        for shift in [shift, shift + 32] {
            assert_eq!(stored(l.shl_64(x, shift)), each(&|a, _| a << shift));
            assert_eq!(stored(l.shr_64(x, shift)), each(&|a, _| a >> shift));
        }
        assert_eq!(l.eq_64(x, y), mask_of(|n| a[n] == b[n]));
        assert_eq!(l.le_64(x, y), mask_of(|n| a[n] <= b[n]));
        assert_eq!(l.eq_64(x, x), u16::MAX);
    }
}

/// Compares floating-point operations: equal bits.
struct Floats(Given);

impl Kernel for Floats {
    type Output = ();

    fn run<L: Lanes>(self, l: L) {
        let Given { a, b, .. } = self.0;
        let (x, y) = (l.floats(l.load(&a)), l.floats(l.load(&b)));
        let bits = |values: L::F64| {
            let mut to = [0; GROUP];
            l.store(l.short_bits(values), &mut to);
            to
        };
        let each = |f: &dyn Fn(f64, f64) -> f64| {
            from_fn(|n| (f(f64::from(a[n]), f64::from(b[n])) as f32).to_bits())
        };
        assert_eq!(bits(x), each(&|a, _| a));
        let mut short = [0; GROUP];
        l.store(l.bits_of_short(l.shr(l.load(&a), 8)), &mut short);
        assert_eq!(short, a.map(|a| ((a >> 8) as f32).to_bits()));
        assert_eq!(bits(l.set_float(0.1)), [0.1_f32.to_bits(); GROUP]);
        assert_eq!(bits(l.add_floats(x, y)), each(&|a, b| a + b));
        assert_eq!(bits(l.sub_floats(x, y)), each(&|a, b| a - b));
        assert_eq!(bits(l.mul_floats(x, y)), each(&|a, b| a * b));
        let one = l.set_float(1.0);
        let quotients = l.div_floats(x, l.add_floats(y, one));
        assert_eq!(bits(quotients), each(&|a, b| a / (b + 1.0)));
        assert_eq!(
            bits(l.positive(l.sub_floats(x, y))),
            each(&|a, b| (a - b).max(0.0))
        );
        let mut whole = [0; GROUP];
        l.store(l.whole(quotients), &mut whole);
        let expected = from_fn(|n| (f64::from(a[n]) / (f64::from(b[n]) + 1.0)) as u32);
        assert_eq!(whole, expected);
    }
}

/// Compares comparisons of 64 numbers, and rows of bits.
struct Rows(Given);

impl Kernel for Rows {
    type Output = ();

    fn run<L: Lanes>(self, l: L) {
        let Given {
            long_a,
            long_b,
            shift,
            value,
            many,
            ..
        } = self.0;
        // The number that each bit of a comparison stands for.
        let number = |bit: usize| usize::from(L::FOURS[bit / 4]) * 4 + bit % 4;
        let above = |most: u32, than: u32| {
            let is_above = |bit: usize| many[number(bit)].min(most) > than;
            (0..64)
                .map(|bit| u64::from(is_above(bit)) << bit)
                .sum::<u64>()
        };
        let mut found = 0;
        l.words_above(l.words(&many), (value ^ 1 << 31).cast_signed(), &mut found);
        assert_eq!(found, above(u32::MAX, value));
        let half = value as u16;
        l.halves_above(l.halves(&many), (half ^ 1 << 15).cast_signed(), &mut found);
        assert_eq!(found, above(u16::MAX.into(), half.into()));
        let byte = value as u8;
        l.bytes_above(l.bytes(&many), (byte ^ 1 << 7).cast_signed(), &mut found);
        assert_eq!(found, above(u8::MAX.into(), byte.into()));

        let row = |words: &[u64; GROUP]| BitRow(from_fn(|n| words[n]));
        let (a, b) = (row(&long_a), row(&long_b));
        let (x, y) = (l.row(&a), l.row(&b));
        let stored = |row: L::Row| {
            let mut to = BitRow::default();
            l.store_row(row, &mut to);
            to
        };
        let each = |f: &dyn Fn(u64, u64) -> u64| BitRow(from_fn(|n| f(a.0[n], b.0[n])));
        assert_eq!(stored(x), a);
        assert_eq!(stored(l.and_rows(x, y)), each(&|a, b| a & b));
        assert_eq!(stored(l.without(x, y)), each(&|a, b| a & !b));
        assert_eq!(stored(l.or_rows(x, y)), each(&|a, b| a | b));
        assert_eq!(stored(l.xor_rows(x, y)), each(&|a, b| a ^ b));
        for shift in [shift, shift + 32] {
            assert_eq!(stored(l.shl_row(x, shift)), each(&|a, _| a << shift));
            assert_eq!(stored(l.shr_row(x, shift)), each(&|a, _| a >> shift));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_operation_is_what_it_says(given in given()) {
        let available = Simd::available();
        // Every machine that this is developed on has some.
        prop_assert!(!available.is_empty());
        for simd in available {
            simd.run(Words32(given.clone()));
            simd.run(Masks(given.clone()));
            simd.run(Words64(given.clone()));
            simd.run(Floats(given.clone()));
            simd.run(Rows(given.clone()));
        }
    }
}
