// DTA's reporter (§5.1): every packet goes on, and one of a watched source also makes a report, a Key-Write of the
// bytes of that packet under the source's address.
//
//   ingress   watch: source address -> redundancy, and the collector's addresses; a hit clones the packet
//   egress    of a clone: the report in place of the packet
//
// dta_reporter.spec is the same program for DPDK, written by hand: it has no egress, so the runner makes two copies;
// the first goes on, and the second becomes the report or is dropped.

#include <core.p4>
#include <psa.p4>
#include "include/dta.p4"

const PortIdUint_t PORT_COLLECTOR = 0;
const PortIdUint_t PORT_OTHERS    = 1;
const CloneSessionIdUint_t REPORTS = 1; // to PORT_COLLECTOR

struct empty_t {}

// In front of a clone.
header found_t {
    bit<8>  redundancy;
    bit<48> dst_mac;
    bit<48> src_mac;
    bit<32> src;
    bit<32> dst;
    bit<16> checksum;
    bit<16> source_port;
    bit<32> key;
    bit<32> data;
}

header key_write_t {
    bit<8>  flags;
    bit<8>  redundancy;
    bit<32> key;
    bit<32> data;
}

struct reporter_headers_t {
    arrival_t   arrival;
    ethernet_t  ethernet;
    ipv4_t      ipv4;
    udp_t       udp;
    dta_base_t  base;
    key_write_t key_write;
    payload_t   rest;
}

struct meta_t {
    found_t found;
    bit<32> key;
    bit<32> data;
}

parser IngressParser(packet_in packet, out reporter_headers_t h, inout meta_t m,
                     in psa_ingress_parser_input_metadata_t i, in empty_t resubmitted, in empty_t recirculated) {
    state start {
        packet.extract(h.arrival);
        packet.extract(h.ethernet);
        transition select(h.ethernet.type, h.arrival.captured_len < 34) {
            (TYPE_IPV4, false): ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(h.ipv4);
        transition accept;
    }
}

control Ingress(inout reporter_headers_t h, inout meta_t m, in psa_ingress_input_metadata_t i,
                inout psa_ingress_output_metadata_t o) {
    Register<bit<64>, bit<32>>(1, 0) seen; // IPv4 packets that the table was asked about

    action report(bit<8> redundancy, bit<48> dst_mac, bit<48> src_mac, bit<32> src, bit<32> dst, bit<16> checksum,
                  bit<16> source_port) {
        m.found = { redundancy, dst_mac, src_mac, src, dst, checksum, source_port, m.key, m.data };
        m.found.setValid();
        o.clone = true;
        o.clone_session_id = (CloneSessionId_t)REPORTS;
    }

    table watch {
        key = { m.key: ternary; }
        actions = { report; NoAction; }
        default_action = NoAction();
        size = 1024;
    }

    apply {
        if (h.ipv4.isValid()) {
            m.key = h.ipv4.src;
            m.data = h.arrival.wire_len;
            watch.apply();
            bit<64> count = seen.read(0);
            seen.write(0, count + 1);
        }
        send_to_port(o, (PortId_t)PORT_OTHERS);
    }
}

control IngressDeparser(packet_out packet, out found_t cloned, out empty_t resubmitted, out empty_t normal,
                        inout reporter_headers_t h, in meta_t m, in psa_ingress_output_metadata_t o) {
    apply {
        if (psa_clone_i2e(o)) { cloned = m.found; }
        packet.emit(h.ethernet);
        packet.emit(h.ipv4);
    }
}

// A clone is the packet as it came, with the arrival header. The clone session truncates to the 50 bytes that are taken
// off here, so nothing follows the report.
parser EgressParser(packet_in packet, out reporter_headers_t h, inout meta_t m, in psa_egress_parser_input_metadata_t i,
                    in empty_t normal, in found_t cloned_i, in empty_t cloned_e) {
    state start {
        transition select(i.packet_path == PSA_PacketPath_t.CLONE_I2E) { true: clone; false: accept; }
    }
    state clone {
        m.found = cloned_i;
        packet.extract(h.arrival);
        packet.extract(h.ethernet);
        packet.extract(h.ipv4);
        transition accept;
    }
}

control Egress(inout reporter_headers_t h, inout meta_t m, in psa_egress_input_metadata_t i,
               inout psa_egress_output_metadata_t o) {
    apply {
        if (i.packet_path == PSA_PacketPath_t.CLONE_I2E) {
            h.ethernet.dst = m.found.dst_mac;
            h.ethernet.src = m.found.src_mac;
            h.ipv4 = { 0x45, 0, 39, 0, 0x4000, 64, PROTOCOL_UDP, m.found.checksum, m.found.src, m.found.dst };
            h.udp.setValid();
            h.udp = { m.found.source_port, PORT_DTA, 19, 0 };
            h.base.setValid();
            h.base = { DTA_KEY_WRITE };
            h.key_write.setValid();
            h.key_write = { 0, m.found.redundancy, m.found.key, m.found.data };
        }
    }
}

control EgressDeparser(packet_out packet, out empty_t cloned, out empty_t recirculated, inout reporter_headers_t h,
                       in meta_t m, in psa_egress_output_metadata_t o, in psa_egress_deparser_input_metadata_t d) {
    apply {
        packet.emit(h.ethernet);
        packet.emit(h.ipv4);
        packet.emit(h.udp);
        packet.emit(h.base);
        packet.emit(h.key_write);
    }
}

IngressPipeline(IngressParser(), Ingress(), IngressDeparser()) ingress;
EgressPipeline(EgressParser(), Egress(), EgressDeparser()) egress;
PSA_Switch(ingress, PacketReplicationEngine(), egress, BufferingQueueingEngine()) main;
