// TitanLog's data plane without flow state: parse, features of the packet (§IV-A), a random forest (§IV-B), class to
// granularity (§VI-A), the packet out by granularity, counters. Tables are filled by `strata model p4`.
//
//   value of a feature -> marks     range_*: which tests of each tree the value fails, a bit per test
//   marks of a tree    -> leaf      tree_*: an entry per leaf, the tests on its path, ternary; adds its share per class
//   sums of shares     -> class     decide: the rules of the model's decision, in order
//   class              -> keep      granularity: nothing, header, partial or full, and the port
//
// titanlog.spec is the same program for DPDK, written by hand. Registers are read and written once per packet.

#include <core.p4>
#include <psa.p4>
#include "include/parser.p4"

// As many as models may have: `crates/programs/models/src/p4/target.rs`.
// 8 trees of up to 64 tests and 256 leaves, 8 classes.
const bit<8> UNCLASSIFIED = 8; // the class of packets beyond the parser

const bit<8> KEEP_NOTHING = 0;
const bit<8> KEEP_HEADER  = 1;
const bit<8> KEEP_PARTIAL = 2;
const bit<8> KEEP_FULL    = 3;

struct empty_t {}

struct meta_t {
    parsed_t parsed;
    bit<16> size;
    bit<16> header_len;
    bit<16> payload_len;
    bit<16> lower_port;
    bit<8> ecn;
    bit<8>  class;
    bit<8>  kind;
    bit<32> kept; // bytes that leave
    bit<64> tree0;
    bit<64> tree1;
    bit<64> tree2;
    bit<64> tree3;
    bit<64> tree4;
    bit<64> tree5;
    bit<64> tree6;
    bit<64> tree7;
    bit<32> score0;
    bit<32> score1;
    bit<32> score2;
    bit<32> score3;
    bit<32> score4;
    bit<32> score5;
    bit<32> score6;
    bit<32> score7;
}

parser IngressParser(packet_in packet, out headers_t h, inout meta_t m, in psa_ingress_parser_input_metadata_t i,
                     in empty_t resubmitted, in empty_t recirculated) {
    Parse() parse;
    state start {
        parse.apply(packet, h, m.parsed);
        transition accept;
    }
}

control Ingress(inout headers_t h, inout meta_t m, in psa_ingress_input_metadata_t i,
                inout psa_ingress_output_metadata_t o) {
    Register<bit<64>, bit<8>>(16, 0) class_packets;
    Register<bit<64>, bit<8>>(16, 0) class_bytes;       // on the wire
    Register<bit<64>, bit<8>>(4, 0) granularity_packets;
    Register<bit<64>, bit<8>>(4, 0) granularity_bytes;  // on the wire
    Register<bit<64>, bit<8>>(4, 0) granularity_kept;   // bytes that left
    Register<bit<64>, bit<8>>(8, 0) beyond_packets;

    // Tests that a value fails, of all trees.
    action mark(bit<64> t0, bit<64> t1, bit<64> t2, bit<64> t3, bit<64> t4, bit<64> t5, bit<64> t6, bit<64> t7) {
        m.tree0 = m.tree0 | t0;
        m.tree1 = m.tree1 | t1;
        m.tree2 = m.tree2 | t2;
        m.tree3 = m.tree3 | t3;
        m.tree4 = m.tree4 | t4;
        m.tree5 = m.tree5 | t5;
        m.tree6 = m.tree6 | t6;
        m.tree7 = m.tree7 | t7;
    }
    // The share of each class, in 1/65,535.
    action leaf(bit<16> s0, bit<16> s1, bit<16> s2, bit<16> s3, bit<16> s4, bit<16> s5, bit<16> s6, bit<16> s7) {
        m.score0 = m.score0 + (bit<32>)s0;
        m.score1 = m.score1 + (bit<32>)s1;
        m.score2 = m.score2 + (bit<32>)s2;
        m.score3 = m.score3 + (bit<32>)s3;
        m.score4 = m.score4 + (bit<32>)s4;
        m.score5 = m.score5 + (bit<32>)s5;
        m.score6 = m.score6 + (bit<32>)s6;
        m.score7 = m.score7 + (bit<32>)s7;
    }
    action set_class(bit<8> class) { m.class = class; }
    action keep(bit<8> kind, PortIdUint_t port) {
        m.kind = kind;
        o.egress_port = (PortId_t)port;
    }

    table range_size {
        key = { m.size: ternary; }
        actions = { mark; NoAction; }
        default_action = NoAction();
        size = 4096;
    }
    table range_header_len {
        key = { m.header_len: ternary; }
        actions = { mark; NoAction; }
        default_action = NoAction();
        size = 4096;
    }
    table range_payload_len {
        key = { m.payload_len: ternary; }
        actions = { mark; NoAction; }
        default_action = NoAction();
        size = 4096;
    }
    table range_protocol {
        key = { m.parsed.protocol: ternary; }
        actions = { mark; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table range_source_port {
        key = { m.parsed.source_port: ternary; }
        actions = { mark; NoAction; }
        default_action = NoAction();
        size = 4096;
    }
    table range_destination_port {
        key = { m.parsed.destination_port: ternary; }
        actions = { mark; NoAction; }
        default_action = NoAction();
        size = 4096;
    }
    table range_lower_port {
        key = { m.lower_port: ternary; }
        actions = { mark; NoAction; }
        default_action = NoAction();
        size = 4096;
    }
    table range_tcp_flags {
        key = { m.parsed.tcp_flags: ternary; }
        actions = { mark; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table range_tcp_window {
        key = { m.parsed.tcp_window: ternary; }
        actions = { mark; NoAction; }
        default_action = NoAction();
        size = 4096;
    }
    table range_ttl {
        key = { m.parsed.ttl: ternary; }
        actions = { mark; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table range_tos {
        key = { m.parsed.tos: ternary; }
        actions = { mark; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table range_ecn {
        key = { m.ecn: ternary; }
        actions = { mark; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table tree_0 {
        key = { m.tree0: ternary; }
        actions = { leaf; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table tree_1 {
        key = { m.tree1: ternary; }
        actions = { leaf; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table tree_2 {
        key = { m.tree2: ternary; }
        actions = { leaf; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table tree_3 {
        key = { m.tree3: ternary; }
        actions = { leaf; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table tree_4 {
        key = { m.tree4: ternary; }
        actions = { leaf; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table tree_5 {
        key = { m.tree5: ternary; }
        actions = { leaf; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table tree_6 {
        key = { m.tree6: ternary; }
        actions = { leaf; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table tree_7 {
        key = { m.tree7: ternary; }
        actions = { leaf; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table decide {
        key = {
            m.score0: ternary;
            m.score1: ternary;
            m.score2: ternary;
            m.score3: ternary;
            m.score4: ternary;
            m.score5: ternary;
            m.score6: ternary;
            m.score7: ternary;
        }
        actions = { set_class; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    // Without entries, everything is kept.
    table granularity {
        key = { m.class: exact; }
        actions = { keep; }
        default_action = keep(KEEP_FULL, 2);
        size = 16;
    }

    apply {
        m.class = UNCLASSIFIED;
        if (m.parsed.beyond == 0) {
            m.size = h.arrival.wire_len > 0xffff ? 0xffff : (bit<16>)h.arrival.wire_len;
            m.header_len = (bit<16>)m.parsed.at;
            m.payload_len = m.size < m.header_len ? 0 : m.size - m.header_len;
            m.lower_port = m.parsed.source_port < m.parsed.destination_port
                ? m.parsed.source_port : m.parsed.destination_port;
            m.ecn = m.parsed.tos & 3;
            m.tree0 = 0;
            m.tree1 = 0;
            m.tree2 = 0;
            m.tree3 = 0;
            m.tree4 = 0;
            m.tree5 = 0;
            m.tree6 = 0;
            m.tree7 = 0;
            range_size.apply();
            range_header_len.apply();
            range_payload_len.apply();
            range_protocol.apply();
            range_source_port.apply();
            range_destination_port.apply();
            range_lower_port.apply();
            range_tcp_flags.apply();
            range_tcp_window.apply();
            range_ttl.apply();
            range_tos.apply();
            range_ecn.apply();
            m.score0 = 0;
            m.score1 = 0;
            m.score2 = 0;
            m.score3 = 0;
            m.score4 = 0;
            m.score5 = 0;
            m.score6 = 0;
            m.score7 = 0;
            tree_0.apply();
            tree_1.apply();
            tree_2.apply();
            tree_3.apply();
            tree_4.apply();
            tree_5.apply();
            tree_6.apply();
            tree_7.apply();
            decide.apply();
        }
        granularity.apply();
        m.kept = m.parsed.at + m.parsed.first_len + m.parsed.rest_len;
        if (m.kind != KEEP_FULL) {
            h.rest.setInvalid();
            m.kept = m.kept - m.parsed.rest_len;
            if (m.kind != KEEP_PARTIAL) {
                h.first.setInvalid();
                m.kept = m.kept - m.parsed.first_len;
                if (m.kind == KEEP_NOTHING) { m.kept = 0; }
            }
        }
        // Each register once: read, then written at the same index.
        bit<64> wire = (bit<64>)h.arrival.wire_len;
        bit<64> count = class_packets.read(m.class);
        class_packets.write(m.class, count + 1);
        count = class_bytes.read(m.class);
        class_bytes.write(m.class, count + wire);
        count = beyond_packets.read(m.parsed.beyond);
        beyond_packets.write(m.parsed.beyond, count + 1);
        count = granularity_packets.read(m.kind);
        granularity_packets.write(m.kind, count + 1);
        count = granularity_bytes.read(m.kind);
        granularity_bytes.write(m.kind, count + wire);
        count = granularity_kept.read(m.kind);
        granularity_kept.write(m.kind, count + (bit<64>)m.kept);
        o.drop = m.kind == KEEP_NOTHING;
        o.multicast_group = (MulticastGroup_t)0;
    }
}

control IngressDeparser(packet_out packet, out empty_t cloned, out empty_t resubmitted, out empty_t normal,
                        inout headers_t h, in meta_t m, in psa_ingress_output_metadata_t o) {
    apply {
        packet.emit(h.ethernet);
        packet.emit(h.tag0);
        packet.emit(h.tag1);
        packet.emit(h.ipv4);
        packet.emit(h.ipv4_options);
        packet.emit(h.ipv6);
        packet.emit(h.tcp);
        packet.emit(h.tcp_options);
        packet.emit(h.udp);
        packet.emit(h.first);
        packet.emit(h.rest);
    }
}

// No egress: p4c's back end for DPDK has none.
parser EgressParser(packet_in packet, out empty_t h, inout empty_t m, in psa_egress_parser_input_metadata_t i,
                    in empty_t normal, in empty_t cloned_i, in empty_t cloned_e) {
    state start { transition accept; }
}
control Egress(inout empty_t h, inout empty_t m, in psa_egress_input_metadata_t i,
               inout psa_egress_output_metadata_t o) { apply {} }
control EgressDeparser(packet_out packet, out empty_t cloned, out empty_t recirculated, inout empty_t h, in empty_t m,
                       in psa_egress_output_metadata_t o, in psa_egress_deparser_input_metadata_t d) { apply {} }

IngressPipeline(IngressParser(), Ingress(), IngressDeparser()) ingress;
EgressPipeline(EgressParser(), Egress(), EgressDeparser()) egress;
PSA_Switch(ingress, PacketReplicationEngine(), egress, BufferingQueueingEngine()) main;
