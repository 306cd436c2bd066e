// *Flow's cache (§5) with narrow buffers only: packets are grouped by flow into vectors of up to 4 tuples, which leave
// when the buffer is full, another flow takes the slot, or a packet's time does not fit.
//
//   CRC of the flow key -> slot
//   addresses, ports     registers: the slot's key; read, and written with this packet's
//   progress             register: start of the vector, tuples held
//   buffer_0 .. 3        registers: a tuple of each slot; read, and one of them written
//   exporter             tuples that leave -> where they are sent
//
// Each array has one access, a read and a write at the same index, as a stateful ALU does. There are no wide buffers:
// these need a second pass, to free a block (§5.3).
//
// Ingress does all of this. A packet that makes a vector leave is cloned; egress writes the vector in place of the
// clone. starflow.spec is the same program for DPDK, written by hand: it has no egress, so the runner makes two copies;
// the first goes on, and the second passes the cache and becomes the vector or is dropped.

#include <core.p4>
#include <psa.p4>
#include "include/headers.p4"

const PortIdUint_t PORT_OTHERS = 1;
const CloneSessionIdUint_t VECTORS = 1; // to port 0

const bit<32> SLOTS      = 4096;
const bit<64> NARROW     = 4;          // tuples of a buffer: `progress` has 2 bits for it
const bit<64> DELTA_MAX  = 1048575999; // ns that fit into 20 bits of us
const bit<64> PER_US     = 17592186045; // 2^44 / 1000, exact for numbers below 2^30
const bit<32> SIZE_MAX   = 2047;

const bit<8> REASON_FULL      = 0;
const bit<8> REASON_COLLISION = 1;
const bit<8> REASON_TIME      = 2;

struct empty_t {}

header vector_t {
    bit<32> src;
    bit<32> dst;
    bit<16> source_port;
    bit<16> destination_port;
    bit<8>  protocol;
    bit<8>  ingress;
    bit<16> count;
    bit<64> start; // ns since 1970
}

// us since the start 20, bytes 11, high queue 1.
header tuple_t {
    bit<32> value;
}

// In front of a clone.
header export_t {
    bit<48> dst_mac;
    bit<48> src_mac;
    bit<32> src;
    bit<32> dst;
    bit<16> checksum;
    bit<16> source_port;
    bit<16> destination_port;
    bit<64> addresses;
    bit<64> ports;
    bit<64> start;
    bit<16> count;
    bit<32> tuple0;
    bit<32> tuple1;
    bit<32> tuple2;
    bit<32> tuple3;
}

struct starflow_headers_t {
    arrival_t  arrival;
    ethernet_t ethernet;
    ipv4_t     ipv4;
    udp_t      udp; // of TCP, its first 8 bytes
    vector_t   vector;
    tuple_t    tuple0;
    tuple_t    tuple1;
    tuple_t    tuple2;
    tuple_t    tuple3;
}

struct meta_t {
    export_t found;
    bit<8>   is_tracked;
    bit<8>   reason;
    bit<16>  count;
    bit<64>  addresses;
    bit<64>  ports;
}

parser IngressParser(packet_in packet, out starflow_headers_t h, inout meta_t m,
                     in psa_ingress_parser_input_metadata_t i, in empty_t resubmitted, in empty_t recirculated) {
    state start {
        packet.extract(h.arrival);
        packet.extract(h.ethernet);
        m.is_tracked = 0;
        transition select(h.ethernet.type, h.arrival.captured_len < 42) {
            (TYPE_IPV4, false): ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(h.ipv4);
        transition select(h.ipv4.version_ihl, h.ipv4.fragment & 0x3fff, h.ipv4.protocol) {
            (0x45, 0, PROTOCOL_TCP): ports;
            (0x45, 0, PROTOCOL_UDP): ports;
            default: accept;
        }
    }
    state ports {
        packet.extract(h.udp);
        m.is_tracked = 1;
        transition accept;
    }
}

control Ingress(inout starflow_headers_t h, inout meta_t m, in psa_ingress_input_metadata_t i,
                inout psa_ingress_output_metadata_t o) {
    Register<bit<64>, bit<32>>(4096, 0) addresses;
    Register<bit<64>, bit<32>>(4096, 0) ports;
    Register<bit<64>, bit<32>>(4096, 0) progress; // start << 2 | tuples held
    Register<bit<64>, bit<32>>(4096, 0) buffer_0;
    Register<bit<64>, bit<32>>(4096, 0) buffer_1;
    Register<bit<64>, bit<32>>(4096, 0) buffer_2;
    Register<bit<64>, bit<32>>(4096, 0) buffer_3;
    Register<bit<64>, bit<8>>(4, 0) exported; // vectors, by reason
    Hash<bit<32>>(PSA_HashAlgorithm_t.CRC32) crc;

    action export(bit<48> dst_mac, bit<48> src_mac, bit<32> src, bit<32> dst, bit<16> checksum, bit<16> source_port,
                  bit<16> destination_port) {
        m.found.setValid();
        m.found.dst_mac = dst_mac;
        m.found.src_mac = src_mac;
        m.found.src = src;
        m.found.dst = dst;
        m.found.checksum = checksum;
        m.found.source_port = source_port;
        m.found.destination_port = destination_port;
        o.clone = true;
        o.clone_session_id = (CloneSessionId_t)VECTORS;
    }

    table exporter {
        key = { m.count: exact; }
        actions = { export; NoAction; }
        default_action = NoAction();
        size = 4;
    }

    apply {
        if (m.is_tracked == 1) {
            bit<32> slot = crc.get_hash({ h.ipv4.src, h.ipv4.dst, h.udp.source_port, h.udp.destination_port,
                                          h.ipv4.protocol }) & (SLOTS - 1);
            m.addresses = h.ipv4.src ++ h.ipv4.dst;
            m.ports = 24w0 ++ h.udp.source_port ++ h.udp.destination_port ++ h.ipv4.protocol;
            bit<64> old_addresses = addresses.read(slot);
            addresses.write(slot, m.addresses);
            bit<64> old_ports = ports.read(slot);
            ports.write(slot, m.ports);
            bool foreign = old_addresses != m.addresses || old_ports != m.ports;

            bit<64> old = progress.read(slot);
            bit<64> filled = old & 3;
            bit<64> start = old >> 2;
            bit<64> delta = h.arrival.ts_ns - start;
            // Before the start, the difference wraps around to far after it.
            bool anew = foreign || filled == 0 || delta > DELTA_MAX;
            progress.write(slot, anew ? h.arrival.ts_ns << 2 | 1 : start << 2 | ((filled + 1) & 3));

            bit<64> place = anew ? 0 : filled;
            delta = anew ? 0 : delta;
            bit<32> size = h.arrival.wire_len < SIZE_MAX ? h.arrival.wire_len : SIZE_MAX;
            bit<64> tuple = (delta * PER_US >> 44) << 12 | (bit<64>)size << 1;
            bit<64> tuple0 = buffer_0.read(slot);
            buffer_0.write(slot, place == 0 ? tuple : tuple0);
            bit<64> tuple1 = buffer_1.read(slot);
            buffer_1.write(slot, place == 1 ? tuple : tuple1);
            bit<64> tuple2 = buffer_2.read(slot);
            buffer_2.write(slot, place == 2 ? tuple : tuple2);
            bit<64> tuple3 = buffer_3.read(slot);
            buffer_3.write(slot, place == 3 ? tuple : tuple3);

            // What leaves: the buffer that this packet fills, or that of before.
            m.count = 0;
            if (!anew && place == NARROW - 1) {
                m.count = 4;
                m.reason = REASON_FULL;
                tuple3 = tuple;
            } else if (anew && filled != 0) {
                m.count = (bit<16>)filled;
                m.reason = foreign ? REASON_COLLISION : REASON_TIME;
                m.addresses = old_addresses;
                m.ports = old_ports;
            }
            if (m.count != 0) {
                bit<64> count = exported.read(m.reason);
                exported.write(m.reason, count + 1);
                exporter.apply();
                m.found.addresses = m.addresses;
                m.found.ports = m.ports;
                m.found.start = start;
                m.found.count = m.count;
                m.found.tuple0 = (bit<32>)tuple0;
                m.found.tuple1 = (bit<32>)tuple1;
                m.found.tuple2 = (bit<32>)tuple2;
                m.found.tuple3 = (bit<32>)tuple3;
            }
        }
        send_to_port(o, (PortId_t)PORT_OTHERS);
    }
}

control IngressDeparser(packet_out packet, out export_t cloned, out empty_t resubmitted, out empty_t normal,
                        inout starflow_headers_t h, in meta_t m, in psa_ingress_output_metadata_t o) {
    apply {
        if (psa_clone_i2e(o)) { cloned = m.found; }
        packet.emit(h.ethernet);
        packet.emit(h.ipv4);
        packet.emit(h.udp);
    }
}

// A clone is the packet as it came, with the arrival header. The clone session truncates to the 58 bytes that are taken
// off here, so nothing follows the vector.
parser EgressParser(packet_in packet, out starflow_headers_t h, inout meta_t m, in psa_egress_parser_input_metadata_t i,
                    in empty_t normal, in export_t cloned_i, in empty_t cloned_e) {
    state start {
        transition select(i.packet_path == PSA_PacketPath_t.CLONE_I2E) { true: clone; false: accept; }
    }
    state clone {
        m.found = cloned_i;
        packet.extract(h.arrival);
        packet.extract(h.ethernet);
        packet.extract(h.ipv4);
        packet.extract(h.udp);
        transition accept;
    }
}

control Egress(inout starflow_headers_t h, inout meta_t m, in psa_egress_input_metadata_t i,
               inout psa_egress_output_metadata_t o) {
    apply {
        if (i.packet_path == PSA_PacketPath_t.CLONE_I2E) {
            h.ethernet = { m.found.dst_mac, m.found.src_mac, TYPE_IPV4 };
            h.ipv4 = { 0x45, 0, m.found.count * 4 + 52, 0, 0x4000, 64, PROTOCOL_UDP, m.found.checksum, m.found.src,
                       m.found.dst };
            h.udp = { m.found.source_port, m.found.destination_port, m.found.count * 4 + 32, 0 };
            h.vector.setValid();
            h.vector = { m.found.addresses[63:32], m.found.addresses[31:0], m.found.ports[39:24], m.found.ports[23:8],
                         m.found.ports[7:0], 0, m.found.count, m.found.start };
            h.tuple0.setValid();
            h.tuple0.value = m.found.tuple0;
            if (m.found.count > 1) {
                h.tuple1.setValid();
                h.tuple1.value = m.found.tuple1;
            }
            if (m.found.count > 2) {
                h.tuple2.setValid();
                h.tuple2.value = m.found.tuple2;
            }
            if (m.found.count > 3) {
                h.tuple3.setValid();
                h.tuple3.value = m.found.tuple3;
            }
        }
    }
}

control EgressDeparser(packet_out packet, out empty_t cloned, out empty_t recirculated, inout starflow_headers_t h,
                       in meta_t m, in psa_egress_output_metadata_t o, in psa_egress_deparser_input_metadata_t d) {
    apply {
        packet.emit(h.ethernet);
        packet.emit(h.ipv4);
        packet.emit(h.udp);
        packet.emit(h.vector);
        packet.emit(h.tuple0);
        packet.emit(h.tuple1);
        packet.emit(h.tuple2);
        packet.emit(h.tuple3);
    }
}

IngressPipeline(IngressParser(), Ingress(), IngressDeparser()) ingress;
EgressPipeline(EgressParser(), Egress(), EgressDeparser()) egress;
PSA_Switch(ingress, PacketReplicationEngine(), egress, BufferingQueueingEngine()) main;
