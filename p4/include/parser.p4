// The shared parser: Ethernet, up to two VLAN tags, IPv4 or IPv6, TCP or UDP, then the payload in two parts.
//
// It compares lengths itself before it extracts: SWX does not, and would read bytes of an earlier packet. Strata reads
// headers the same way (`crates/base/wire/src/walk.rs`), so packets that this parser takes have equal features in both.

#ifndef STRATA_PARSER
#define STRATA_PARSER

#include "headers.p4"

struct parsed_t {
    bit<32> at;        // bytes taken so far; at the end, bytes of all headers
    bit<32> limit;     // where headers end at the latest: captured bytes, or the end that the IP header gives
    bit<32> begin;     // where the IP header begins
    bit<32> end;       // where the IP header says that its packet ends
    bit<32> part;      // bytes of options, or of a part of the payload
    bit<32> first_len; // bytes of both parts of the payload
    bit<32> rest_len;
    bit<8>  beyond;    // why this parser does not take the packet, else 0
    bit<8>  tos;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> source_port;
    bit<16> destination_port;
    bit<8>  tcp_flags;
    bit<16> tcp_window;
}

parser Parse(packet_in packet, out headers_t h, inout parsed_t m) {
    state start {
        packet.extract(h.arrival);
        m.at = 0;
        m.limit = h.arrival.captured_len;
        m.beyond = 0;
        m.first_len = 0;
        m.rest_len = 0;
        m.tcp_flags = 0;
        m.tcp_window = 0;
        transition select(m.limit < 14) { true: too_short; false: ethernet; }
    }
    state ethernet {
        packet.extract(h.ethernet);
        m.at = 14;
        transition select(h.ethernet.type) {
            TYPE_VLAN: tag0_length;
            TYPE_SERVICE: tag0_length;
            TYPE_QINQ_OLD: tag0_length;
            TYPE_QINQ_OLDER: tag0_length;
            TYPE_IPV4: ipv4_length;
            TYPE_IPV6: ipv6_length;
            default: no_network;
        }
    }
    state tag0_length {
        transition select(m.at + 4 > m.limit) { true: too_short; false: tag0; }
    }
    state tag0 {
        packet.extract(h.tag0);
        m.at = m.at + 4;
        transition select(h.tag0.type) {
            TYPE_VLAN: tag1_length;
            TYPE_SERVICE: tag1_length;
            TYPE_QINQ_OLD: tag1_length;
            TYPE_QINQ_OLDER: tag1_length;
            TYPE_IPV4: ipv4_length;
            TYPE_IPV6: ipv6_length;
            default: no_network;
        }
    }
    state tag1_length {
        transition select(m.at + 4 > m.limit) { true: too_short; false: tag1; }
    }
    state tag1 {
        packet.extract(h.tag1);
        m.at = m.at + 4;
        transition select(h.tag1.type) {
            TYPE_IPV4: ipv4_length;
            TYPE_IPV6: ipv6_length;
            default: no_network;
        }
    }
    state ipv4_length {
        m.begin = m.at;
        transition select(m.at + 20 > m.limit) { true: too_short; false: ipv4; }
    }
    state ipv4 {
        packet.extract(h.ipv4);
        m.at = m.at + 20;
        m.part = (bit<32>)(h.ipv4.version_ihl & 0xf) << 2;
        m.end = (bit<32>)h.ipv4.total_len;
        transition select(h.ipv4.version_ihl >> 4, m.part < 20, m.end < m.part) {
            (4, false, false): ipv4_whole;
            (4, false, true): too_short;
            default: malformed;
        }
    }
    state ipv4_whole {
        transition select(m.part == 20, m.begin + m.part > m.limit) {
            (true, _): ipv4_fields;
            (false, false): ipv4_options;
            default: too_short;
        }
    }
    state ipv4_options {
        m.part = m.part - 20;
        packet.extract(h.ipv4_options, (m.part - 1) << 3);
        m.at = m.at + m.part;
        transition ipv4_fields;
    }
    state ipv4_fields {
        m.tos = h.ipv4.tos;
        m.ttl = h.ipv4.ttl;
        m.protocol = h.ipv4.protocol;
        m.end = m.end + m.begin;
        // All but `don't fragment` and the bit that is always 0.
        transition select(h.ipv4.fragment & 0x3fff) { 0: transport; default: fragment; }
    }
    state ipv6_length {
        transition select(m.at + 40 > m.limit) { true: too_short; false: ipv6; }
    }
    state ipv6 {
        packet.extract(h.ipv6);
        m.at = m.at + 40;
        m.end = (bit<32>)h.ipv6.payload_len + m.at;
        m.tos = (bit<8>)(h.ipv6.version_class_label >> 20);
        m.ttl = h.ipv6.hop_limit;
        m.protocol = h.ipv6.next_header;
        // A length of 0 is that of a jumbogram, or of a segment still to be divided.
        transition select(h.ipv6.version_class_label >> 28, h.ipv6.payload_len) {
            (6, 0): too_short;
            (6, _): transport;
            default: malformed;
        }
    }
    state transport {
        m.limit = m.end < m.limit ? m.end : m.limit;
        transition select(m.protocol) {
            PROTOCOL_TCP: tcp_length;
            PROTOCOL_UDP: udp_length;
            default: other_transport;
        }
    }
    state tcp_length {
        transition select(m.at + 20 > m.limit) { true: too_short; false: tcp; }
    }
    state tcp {
        packet.extract(h.tcp);
        m.at = m.at + 20;
        m.source_port = h.tcp.source_port;
        m.destination_port = h.tcp.destination_port;
        m.tcp_flags = h.tcp.flags;
        m.tcp_window = h.tcp.window;
        m.part = (bit<32>)(h.tcp.offset >> 4) << 2;
        transition select(m.part < 20, m.part == 20, m.at + m.part - 20 > m.limit) {
            (true, _, _): malformed;
            (_, true, _): payload;
            (_, _, true): too_short;
            default: tcp_options;
        }
    }
    state tcp_options {
        m.part = m.part - 20;
        packet.extract(h.tcp_options, (m.part - 1) << 3);
        m.at = m.at + m.part;
        transition payload;
    }
    state udp_length {
        transition select(m.at + 8 > m.limit) { true: too_short; false: udp; }
    }
    // The ports of VXLAN, GENEVE, VXLAN-GPE, GRE and MPLS in UDP as destinations; of GTP-U and Teredo at either end.
    state udp {
        packet.extract(h.udp);
        m.at = m.at + 8;
        m.source_port = h.udp.source_port;
        m.destination_port = h.udp.destination_port;
        transition select(h.udp.source_port, h.udp.destination_port) {
            (_, 4789): tunnel;
            (_, 8472): tunnel;
            (_, 6081): tunnel;
            (_, 4790): tunnel;
            (_, 4754): tunnel;
            (_, 6635): tunnel;
            (_, 2152): tunnel;
            (2152, _): tunnel;
            (_, 3544): tunnel;
            (3544, _): tunnel;
            default: payload;
        }
    }
    state no_network { m.beyond = BEYOND_NETWORK; transition payload; }
    state malformed { m.beyond = BEYOND_MALFORMED; transition payload; }
    state fragment { m.beyond = BEYOND_FRAGMENT; transition payload; }
    state other_transport { m.beyond = BEYOND_TRANSPORT; transition payload; }
    state tunnel { m.beyond = BEYOND_TUNNEL; transition payload; }
    state too_short { m.beyond = BEYOND_SHORT; transition payload; }
    state payload {
        m.part = h.arrival.captured_len - m.at;
        m.first_len = m.part < PARTIAL ? m.part : PARTIAL;
        m.rest_len = m.part - m.first_len;
        transition select(m.first_len) { 0: accept; default: first; }
    }
    state first {
        packet.extract(h.first, (m.first_len - 1) << 3);
        transition select(m.rest_len) { 0: accept; default: rest; }
    }
    state rest {
        packet.extract(h.rest, (m.rest_len - 1) << 3);
        transition accept;
    }
}

#endif
