// Headers of packets, and what is known of a packet besides. Shared by the programs of this folder.

#ifndef STRATA_HEADERS
#define STRATA_HEADERS

// In front of each packet: neither its length nor its time is in the metadata of PSA on DPDK. A target that has them
// fills this header in its own parser. Never sent out.
header arrival_t {
    bit<32> wire_len;     // bytes
    bit<32> captured_len; // bytes that follow this header
    bit<64> ts_ns;        // ns since 1970
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

// IEEE 802.1Q
header tag_t {
    bit<16> tci;
    bit<16> type;
}

header ipv4_t {
    bit<8>  version_ihl;
    bit<8>  tos;
    bit<16> total_len;
    bit<16> identification;
    bit<16> fragment; // flags and offset
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

// Addresses in halves: SWX has no field of 128 bits.
header ipv6_t {
    bit<32> version_class_label;
    bit<16> payload_len;
    bit<8>  next_header;
    bit<8>  hop_limit;
    bit<64> src_high;
    bit<64> src_low;
    bit<64> dst_high;
    bit<64> dst_low;
}

header tcp_t {
    bit<16> source_port;
    bit<16> destination_port;
    bit<32> sequence;
    bit<32> acknowledgement;
    bit<8>  offset; // in words of 4 bytes, in the upper half
    bit<8>  flags;
    bit<16> window;
    bit<16> checksum;
    bit<16> urgent;
}

header udp_t {
    bit<16> source_port;
    bit<16> destination_port;
    bit<16> length;
    bit<16> checksum;
}

// Options of IPv4 or TCP. A header of SWX with a field of varying size has another one before that.
header options_t {
    bit<8>      kind;
    varbit<312> more;
}

// A part of the payload, as a header that can be left out. A hardware switch has no parser that deep: there, a mirror
// session cuts (docs/p4.md).
header payload_t {
    bit<8>         byte;
    varbit<524272> more;
}

struct headers_t {
    arrival_t  arrival;
    ethernet_t ethernet;
    tag_t      tag0;
    tag_t      tag1;
    ipv4_t     ipv4;
    options_t  ipv4_options;
    ipv6_t     ipv6;
    tcp_t      tcp;
    options_t  tcp_options;
    udp_t      udp;
    payload_t  first; // up to PARTIAL bytes
    payload_t  rest;
}

const bit<16> TYPE_IPV4     = 0x0800;
const bit<16> TYPE_IPV6     = 0x86dd;
const bit<16> TYPE_VLAN     = 0x8100; // IEEE 802.1Q
const bit<16> TYPE_SERVICE  = 0x88a8; // IEEE 802.1ad
const bit<16> TYPE_QINQ_OLD = 0x9100; // before that
const bit<16> TYPE_QINQ_OLDER = 0x9200;

const bit<8> PROTOCOL_TCP = 6;
const bit<8> PROTOCOL_UDP = 17;

// Why a packet is beyond the parser: indices of `beyond_packets`. 0 is for packets that it takes.
const bit<8> BEYOND_NETWORK   = 1; // neither IPv4 nor IPv6 in Ethernet with at most two tags
const bit<8> BEYOND_MALFORMED = 2; // a version or header length that cannot be
const bit<8> BEYOND_FRAGMENT  = 3;
const bit<8> BEYOND_TRANSPORT = 4; // neither TCP nor UDP; extension headers of IPv6
const bit<8> BEYOND_TUNNEL    = 5; // UDP between ports of tunnels: its flow is the inner packet's
const bit<8> BEYOND_SHORT     = 6; // headers that are not whole

// Bytes of payload of the granularity `partial` (TitanLog §VI-A).
const bit<32> PARTIAL = 128;

#endif
