//! What IP carries: transport headers with their checksums, ICMP, and tunnels.

use std::ops::Range;

use strata_wire::checksum::Sum;
use strata_wire::dissect::protocol;
use strata_wire::fields::{icmp, tcp, udp};
use strata_wire::transport::TCP_HEADER_LEN_MIN;
use strata_wire::tunnel::Tunnels;

use super::network::Carried;
use super::walk::Walk;

/// TCP options (IANA, TCP parameters) that are kept, with all lengths that they may have: maximum segment size, window
/// scale (RFC 7323 §2), selective acknowledgements permitted and given (RFC 2018 §2, §3), timestamps (RFC 7323 §3).
const OPTIONS_KEPT: [(u8, &[u8]); 5] = [
    (2, &[4]),
    (3, &[3]),
    (4, &[2]),
    (5, &[10, 18, 26, 34]),
    (8, &[10]),
];
/// The options of one byte: the end of the list, and nothing.
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;

/// The common header of SCTP (RFC 9260 §3.1): the checksum is behind ports and verification tag.
const SCTP_CHECKSUM: Range<usize> = 8..12;

impl Walk<'_> {
    /// What has this protocol number; an unknown one ends the packet.
    pub(super) fn transport(&mut self, number: u8, carried: &Carried) -> Option<()> {
        let from = self.at();
        let is_ipv6 = carried.addresses.len() == 32;
        match number {
            protocol::TCP => {
                let whole = self.tcp();
                self.checksum(from, tcp::CHECKSUM, carried, Some(number))?;
                whole
            }
            protocol::UDP => {
                let whole = self.udp();
                self.checksum(from, udp::CHECKSUM, carried, Some(number))?;
                whole
            }
            protocol::ICMP if !is_ipv6 => {
                let whole = self.icmp(keeps_icmp);
                self.checksum(from, icmp::CHECKSUM, carried, None)?;
                whole
            }
            protocol::ICMPV6 if is_ipv6 => {
                let whole = self.icmp(keeps_icmpv6);
                self.checksum(from, icmp::CHECKSUM, carried, Some(number))?;
                whole
            }
            protocol::SCTP => {
                self.keep(SCTP_CHECKSUM.start)?;
                self.fill(0, SCTP_CHECKSUM.len())
            }
            protocol::IPV4 => {
                self.enter()?;
                self.ipv4()
            }
            protocol::IPV6 => {
                self.enter()?;
                self.ipv6()
            }
            protocol::GRE => self.gre(),
            _ => None,
        }
    }

    fn tcp(&mut self) -> Option<()> {
        let offset = self.rest().get(tcp::DATA_OFFSET.start).copied();
        self.keep(tcp::CHECKSUM.start)?;
        self.fill(0, tcp::CHECKSUM.len())?;
        self.keep(tcp::URGENT_POINTER.len())?;
        let header_len = usize::from(tcp::header_len(offset?));
        self.tcp_options(header_len.checked_sub(TCP_HEADER_LEN_MIN)?)
    }

    /// Options of this many bytes (RFC 9293 §3.1), those that are not kept overwritten.
    fn tcp_options(&mut self, len: usize) -> Option<()> {
        let mut left = len;
        while left > 0 {
            let option_len = match *self.rest() {
                [] => return None,
                // Padding, which some systems do not clear.
                [OPTION_END, ..] => return self.fill(OPTION_END, left),
                [OPTION_NOP, ..] => {
                    self.keep(1)?;
                    1
                }
                [kind, len, ..] if OPTIONS_KEPT.iter().any(|kept| is_one(kept, kind, len)) => {
                    let len = usize::from(len).min(left);
                    self.keep(len)?;
                    len
                }
                [_, len, ..] if len >= 2 => {
                    let len = usize::from(len).min(left);
                    self.fill(OPTION_NOP, len)?;
                    len
                }
                _ => return self.fill(OPTION_NOP, left),
            };
            left = left.checked_sub(option_len)?;
        }
        Some(())
    }

    fn udp(&mut self) -> Option<()> {
        let port = self.word(udp::DESTINATION_PORT);
        self.keep(udp::CHECKSUM.start)?;
        self.fill(0, udp::CHECKSUM.len())?;
        let port = port?;
        let mut tunnels = Tunnels::in_force().iter();
        match tunnels.find(|(of_tunnel, _)| *of_tunnel == port) {
            Some((_, kind)) => self.tunnel_in_udp(kind),
            None => Some(()),
        }
    }

    /// Type and code, and the rest of the header for messages in which it is known to be no address.
    fn icmp(&mut self, keeps_rest: fn(u8, u8) -> bool) -> Option<()> {
        const REST_LEN: usize = icmp::HEADER_LEN - icmp::CHECKSUM.end;
        let kept = match *self.rest() {
            [kind, code, ..] => keeps_rest(kind, code),
            _ => false,
        };
        self.keep(icmp::CHECKSUM.start)?;
        self.fill(0, icmp::CHECKSUM.len())?;
        if kept {
            self.keep(REST_LEN)
        } else {
            self.fill(0, REST_LEN)
        }
    }

    /// Writes the checksum of what IP carries from `from` on, with the pseudo-header of this protocol (RFC 9293 §3.1, RFC
    /// 8200 §8.1) or without one, if all that it covers is left and the original is right. It stays 0 otherwise.
    fn checksum(
        &mut self,
        from: usize,
        field: Range<usize>,
        carried: &Carried,
        pseudo: Option<u8>,
    ) -> Option<()> {
        let at = self.at();
        if carried.end != Some(at) {
            return Some(());
        }
        let sum_of = |bytes: &[u8]| {
            let (covered, mut sum) = (bytes.get(from..at)?, Sum::default());
            if let Some(number) = pseudo {
                sum.add(bytes.get(carried.addresses.clone())?);
                sum.add_number(number.into());
                sum.add_number(u16::try_from(covered.len()).ok()?);
            }
            sum.add(covered);
            Some(sum.fold())
        };
        let was_left_out =
            pseudo == Some(protocol::UDP) && self.packet.get(from..)?.get(field.clone())? == [0, 0];
        if was_left_out || sum_of(self.packet)? != 0xffff {
            return Some(());
        }
        let sum = match !sum_of(self.out)? {
            // RFC 768: 0 is no checksum.
            0 if pseudo == Some(protocol::UDP) => 0xffff,
            sum => sum,
        };
        let field = self.out.get_mut(from..)?.get_mut(field)?;
        field.copy_from_slice(&sum.to_be_bytes());
        Some(())
    }
}

fn is_one(option: &(u8, &[u8]), kind: u8, len: u8) -> bool {
    option.0 == kind && option.1.contains(&len)
}

/// ICMP (RFC 792): identifier and sequence number of echo and timestamps; the MTU of "fragmentation needed" (RFC 1191
/// §4); the length in "time exceeded" (RFC 4884 §4.2). A redirect has an address there.
fn keeps_icmp(kind: u8, code: u8) -> bool {
    matches!((kind, code), (0 | 8 | 11 | 13 | 14, _) | (3, 4))
}

/// ICMPv6 (RFC 4443): the MTU of "packet too big"; the length in "time exceeded"; identifier and sequence number of echo.
fn keeps_icmpv6(kind: u8, _: u8) -> bool {
    matches!(kind, 2 | 3 | 128 | 129)
}
