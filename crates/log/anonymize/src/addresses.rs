//! Addresses, each replaced by another one.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{Ipv4Addr, Ipv6Addr};

use aes::cipher::{BlockEncrypt, KeyInit};
use aes::{Aes128Enc, Block};

use crate::Key;

/// The most addresses of each kind (IPv4, IPv6, Ethernet) of which the replacement is remembered; when there are more,
/// all of that kind are forgotten, and computed again. At most 8 MiB in all.
pub const CACHE_MAX: usize = 1 << 16;

/// Of a group address, in the first byte of an Ethernet address (IEEE 802 §8.2).
const GROUP: u8 = 0x01;
/// Of an address that is administered locally.
const LOCAL: u8 = 0x02;

/// Addresses under a key: each is always replaced by the same one.
pub struct Addresses {
    cipher: Aes128Enc,
    /// What fills a block behind a prefix.
    padding: u128,
    /// Ethernet addresses have a key of their own, so that none of their blocks is one of an IPv6 prefix.
    ethernet: Aes128Enc,
    known_ipv4: HashMap<Ipv4Addr, Ipv4Addr>,
    known_ipv6: HashMap<Ipv6Addr, Ipv6Addr>,
    known_ethernet: HashMap<[u8; 6], [u8; 6]>,
}

impl Addresses {
    /// All addresses under this key. What is remembered of them takes memory later: see [`CACHE_MAX`].
    #[must_use]
    pub fn new(key: &Key) -> Self {
        let cipher = Aes128Enc::new(&key.cipher().into());
        let padding = encrypted(&cipher, u128::from_be_bytes(key.padding()));
        let label = u128::from_be_bytes(*b"strata: ethernet");
        let ethernet = encrypted(&cipher, padding ^ label);
        Self {
            ethernet: Aes128Enc::new(&ethernet.to_be_bytes().into()),
            cipher,
            padding,
            known_ipv4: HashMap::new(),
            known_ipv6: HashMap::new(),
            known_ethernet: HashMap::new(),
        }
    }

    /// An IPv4 address by Crypto-PAn (Xu, Fan, Ammar, Moon: Prefix-Preserving IP Address Anonymization, ICNP 2002, §3),
    /// as the authors' implementation 1.0 has it: two addresses with k bits in common are replaced by two with k bits in
    /// common, and no two by the same. Holds for all addresses: those of broadcast, multicast, loopback and private
    /// networks are no longer such. 32 blocks of AES for one that is not remembered.
    #[must_use]
    pub fn ipv4(&mut self, address: Ipv4Addr) -> Ipv4Addr {
        let (cipher, padding) = (&self.cipher, self.padding);
        remembered(&mut self.known_ipv4, address, |address| {
            let left = u128::from(address.to_bits()) << 96;
            let flips = flips::<32>(cipher, padding, left);
            let [a, b, c, d, ..] = (left ^ flips).to_be_bytes();
            Ipv4Addr::new(a, b, c, d)
        })
    }

    /// An IPv6 address by the same construction over 128 bits instead of 32, with one block for each prefix from 0 to 127
    /// bits: that of yacryptopan (Shima) and of Yawning Angel's cryptopan. cryptopANT and nfdump take another one. 128
    /// blocks of AES for an address that is not remembered.
    #[must_use]
    pub fn ipv6(&mut self, address: Ipv6Addr) -> Ipv6Addr {
        let (cipher, padding) = (&self.cipher, self.padding);
        remembered(&mut self.known_ipv6, address, |address| {
            let bits = address.to_bits();
            Ipv6Addr::from_bits(bits ^ flips::<128>(cipher, padding, bits))
        })
    }

    /// An Ethernet address: 46 bits of its encryption by AES. Whether it is that of a group stays, and it is marked as
    /// administered locally, so its vendor cannot be told. Two addresses in 2^46 are replaced by the same. Broadcast and
    /// zero stay what they are. Other group addresses are replaced, since some have bits of an IP address (RFC 1112 §6.4,
    /// RFC 2464 §7).
    #[must_use]
    pub fn ethernet(&mut self, address: [u8; 6]) -> [u8; 6] {
        if address == [0; 6] || address == [0xff; 6] {
            return address;
        }
        let cipher = &self.ethernet;
        remembered(&mut self.known_ethernet, address, |address| {
            let mut block = Block::default();
            block[..6].copy_from_slice(&address);
            cipher.encrypt_block(&mut block);
            let mut replaced = [0; 6];
            replaced.copy_from_slice(&block[..6]);
            replaced[0] = replaced[0] & !GROUP | address[0] & GROUP | LOCAL;
            replaced
        })
    }
}

fn encrypted(cipher: &Aes128Enc, block: u128) -> u128 {
    let mut block = Block::from(block.to_be_bytes());
    cipher.encrypt_block(&mut block);
    u128::from_be_bytes(block.into())
}

/// The bits of an address to flip, both in the upper `BITS` bits: bit n is the first bit of the encryption of the n bits
/// before it, padded to a block.
fn flips<const BITS: usize>(cipher: &Aes128Enc, padding: u128, address: u128) -> u128 {
    // Ones where the padding is.
    let mut padded = u128::MAX;
    let mut blocks = [Block::default(); BITS];
    for block in &mut blocks {
        *block = Block::from((address & !padded | padding & padded).to_be_bytes());
        padded >>= 1;
    }
    cipher.encrypt_blocks(&mut blocks);
    let mut flips = 0;
    for block in blocks.iter().rev() {
        flips = flips >> 1 | u128::from(block[0] >> 7) << 127;
    }
    flips
}

/// The replacement of an address, computed if it is not known.
fn remembered<T: Copy + Eq + Hash>(
    known: &mut HashMap<T, T>,
    address: T,
    replace: impl FnOnce(T) -> T,
) -> T {
    if let Some(replaced) = known.get(&address) {
        return *replaced;
    }
    if known.len() >= CACHE_MAX {
        known.clear();
    }
    let replaced = replace(address);
    known.insert(address, replaced);
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_remembered_than_the_bound() {
        let mut addresses = Addresses::new(&Key::parse(&[3; 32]).unwrap());
        let first = addresses.ethernet([2, 0, 0, 0, 0, 1]);
        for number in 0..100_000_u32 {
            let [_, high, middle, low] = number.to_be_bytes();
            let _ = addresses.ethernet([4, 7, 7, high, middle, low]);
            assert!(addresses.known_ethernet.len() <= CACHE_MAX);
        }
        assert!(!addresses.known_ethernet.contains_key(&[2, 0, 0, 0, 0, 1]));
        assert_eq!(addresses.ethernet([2, 0, 0, 0, 0, 1]), first);
    }
}
