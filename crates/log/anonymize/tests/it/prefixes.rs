//! As many leading bits are common after as before.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use strata_anonymize::{Addresses, Key};

/// Two addresses with exactly `common` bits in common, of `bits`, aligned to the left.
fn pair(first: u128, second: u128, common: u32, bits: u32) -> [u128; 2] {
    let place = 128 - bits;
    let behind = if common == 128 {
        0
    } else {
        u128::MAX >> common
    };
    let flip = behind & !(behind >> 1);
    let second = first & !behind | (second & behind & !flip) | (!first & flip);
    [first >> place, second >> place]
}

proptest! {
    #[test]
    fn of_ipv4(key: [u8; 32], first: u128, second: u128, common in 0_u32..=32) {
        let mut addresses = Addresses::new(&Key::parse(&key).unwrap());
        let both = pair(first, second, common, 32).map(|bits| u32::try_from(bits).unwrap());
        prop_assert_eq!((both[0] ^ both[1]).leading_zeros(), common);
        let replaced = both.map(|bits| addresses.ipv4(Ipv4Addr::from_bits(bits)).to_bits());
        prop_assert_eq!((replaced[0] ^ replaced[1]).leading_zeros(), common);
    }

    #[test]
    fn of_ipv6(key: [u8; 32], first: u128, second: u128, common in 0_u32..=128) {
        let mut addresses = Addresses::new(&Key::parse(&key).unwrap());
        let both = pair(first, second, common, 128);
        prop_assert_eq!((both[0] ^ both[1]).leading_zeros(), common);
        let replaced = both.map(|bits| addresses.ipv6(Ipv6Addr::from_bits(bits)).to_bits());
        prop_assert_eq!((replaced[0] ^ replaced[1]).leading_zeros(), common);
    }
}
