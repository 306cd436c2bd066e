//! Addresses as other implementations of Crypto-PAn replace them.

use std::net::{Ipv4Addr, Ipv6Addr};

use strata_anonymize::{Addresses, Key};

use crate::common::SAMPLE_KEY;

/// `sample_trace_raw.dat` and `sample_trace_sanitized.dat` of Crypto-PAn 1.0 (Fan), each pair once.
const SAMPLE_TRACE: &str = "
128.11.68.132 135.242.180.132
129.118.74.4 134.136.186.123
130.132.252.244 133.68.164.234
141.223.7.43 141.167.8.160
141.233.145.108 141.129.237.235
152.163.225.39 151.140.114.167
156.29.3.236 147.225.12.42
165.247.96.84 162.9.99.234
166.107.77.190 160.132.178.185
192.102.249.13 252.138.62.131
192.215.32.125 252.43.47.189
192.233.80.103 252.25.108.8
192.41.57.43 252.222.221.184
193.150.244.223 253.169.52.216
195.205.63.100 255.186.223.5
198.200.171.101 249.199.68.213
198.26.132.101 249.36.123.202
198.36.213.5 249.7.21.132
198.51.77.238 249.18.186.254
199.217.79.101 248.38.184.213
202.49.198.20 245.206.7.234
203.12.160.252 244.248.163.4
204.184.162.189 243.192.77.90
204.202.136.230 243.178.4.198
204.29.20.4 243.33.20.123
205.178.38.67 242.108.198.51
205.188.147.153 242.96.16.101
205.188.248.25 242.96.88.27
205.245.121.43 242.21.121.163
207.105.49.5 241.118.205.138
207.135.65.238 241.202.129.222
207.155.9.214 241.220.250.22
207.188.7.45 241.255.249.220
207.25.71.27 241.33.119.156
207.33.151.131 241.1.233.131
208.147.89.59 227.237.98.191
208.234.120.210 227.154.67.17
208.28.185.184 227.39.94.90
208.52.56.122 227.8.63.165
209.12.231.7 226.243.167.8
209.238.72.3 226.6.119.243
209.246.74.109 226.22.124.76
209.68.60.238 226.184.220.233
209.85.249.6 226.170.70.6
212.120.124.31 228.135.163.231
212.146.8.236 228.19.4.234
212.186.227.154 228.59.98.98
212.204.172.118 228.71.195.169
212.206.130.201 228.69.242.193
216.148.237.145 235.84.194.111
216.157.30.252 235.89.31.26
216.184.159.48 235.96.225.78
216.227.10.221 235.28.253.36
216.254.18.172 235.7.16.162
216.32.132.250 235.192.139.38
216.35.217.178 235.195.157.81
24.0.250.221 100.15.198.226
24.13.62.231 100.2.192.247
24.14.213.138 100.1.42.141
24.5.0.80 100.9.15.210
24.7.198.88 100.10.6.25
24.94.26.44 100.88.228.35
38.15.67.68 64.3.66.187
4.3.88.225 124.60.155.63
63.14.55.111 95.9.215.7
63.195.241.44 95.179.238.44
63.97.7.140 95.97.9.123
64.14.118.196 0.255.183.58
64.34.154.117 0.221.154.117
64.39.15.238 0.219.7.41
10.185.25.118 117.161.29.118
";

/// Of [`SAMPLE_KEY`], by the test of cryptopan (Yawning Angel).
const IPV6: [(&str, &str); 5] = [
    ("::1", "78ff:f001:9fc0:20df:8380:b1f1:704:ed"),
    ("::2", "78ff:f001:9fc0:20df:8380:b1f1:704:ef"),
    ("::ffff", "78ff:f001:9fc0:20df:8380:b1f1:704:f838"),
    ("2001:db8::1", "4401:2bc:603f:d91d:27f:ff8e:e6f1:dc1e"),
    ("2001:db8::2", "4401:2bc:603f:d91d:27f:ff8e:e6f1:dc1c"),
];

fn v4(address: &str) -> Ipv4Addr {
    address.parse().unwrap()
}

fn v6(address: &str) -> Ipv6Addr {
    address.parse().unwrap()
}

#[test]
fn ipv4_addresses_are_those_of_the_reference_implementation() {
    let mut addresses = Addresses::new(&Key::parse(&SAMPLE_KEY).unwrap());
    let mut pairs = 0;
    // Twice: computed, and remembered.
    for line in SAMPLE_TRACE.lines().chain(SAMPLE_TRACE.lines()) {
        if let Some((address, replaced)) = line.split_once(' ') {
            assert_eq!(addresses.ipv4(v4(address)), v4(replaced), "{address}");
            pairs += 1;
        }
    }
    assert_eq!(pairs, 2 * 71);
}

#[test]
fn ipv6_addresses_are_those_of_cryptopan_and_yacryptopan() {
    let mut addresses = Addresses::new(&Key::parse(&SAMPLE_KEY).unwrap());
    for (address, replaced) in IPV6.iter().chain(&IPV6) {
        assert_eq!(addresses.ipv6(v6(address)), v6(replaced), "{address}");
    }
    // In yacryptopan itself, and in its README.
    let counted: Vec<u8> = (0..32).collect();
    let text = b"32-char-str-for-AES-key-and-pad.";
    for (key, replaced) in [
        (
            counted.as_slice(),
            ("2.90.93.17", "dd92:2c44:3fc0:ff1e:7ff9:c7f0:8180:7e00"),
        ),
        (
            text,
            ("192.0.125.244", "27fe:8bc7:fee:1e:1e1f:f0fe:f0e1:83fd"),
        ),
    ] {
        let mut addresses = Addresses::new(&Key::parse(key).unwrap());
        assert_eq!(addresses.ipv4(v4("192.0.2.1")), v4(replaced.0));
        assert_eq!(addresses.ipv6(v6("2001:db8::1")), v6(replaced.1));
    }
}

#[test]
fn ethernet_addresses_keep_the_group_bit_and_are_local() {
    let mut addresses = Addresses::new(&Key::parse(&SAMPLE_KEY).unwrap());
    for same in [[0; 6], [0xff; 6]] {
        assert_eq!(addresses.ethernet(same), same);
    }
    let mut seen = std::collections::HashSet::new();
    for number in 0..4_000_u16 {
        let [high, low] = number.to_be_bytes();
        for first in [0x00, 0x01, 0x02, 0x33] {
            let address = [first, 0x1b, 0x21, 0, high, low];
            let replaced = addresses.ethernet(address);
            assert_eq!(replaced[0] & 3, first & 1 | 2, "{address:02x?}");
            assert_eq!(addresses.ethernet(address), replaced);
            assert!(seen.insert(replaced), "{address:02x?}");
        }
    }
    let mut others = Addresses::new(&Key::parse(&[9; 32]).unwrap());
    let address = [0, 0x1b, 0x21, 1, 2, 3];
    assert_ne!(others.ethernet(address), addresses.ethernet(address));
}
