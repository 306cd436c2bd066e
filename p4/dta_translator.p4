// DTA's translator (§4, §5.2): a Key-Write report in, an RDMA WRITE of one slot out for each copy.
//
//   ingress   is it a report; how many copies: a multicast group, whose members go to the collector's port
//   egress    connection: by port, the collector's queue pair, memory and hash
//             key_0 .. key_3: a product of 128 bits for each byte of the key; their sum, folded and mixed, is its hash
//             hash -> checksum, address of the slot of this copy; PSN; the packet and its ICRC
//
// The hash is that of Strata's translator, so a store is the same, whichever of both writes it.
//
// dta_translator.spec is the same program for DPDK, written by hand: it has no egress, so the runner makes the copies
// and the program drops those beyond the redundancy.

#include <core.p4>
#include <psa.p4>
#include "include/dta.p4"

const PortIdUint_t PORT_COLLECTOR = 0;
const PortIdUint_t PORT_OTHERS    = 1;

// Indices of `outcomes`.
const bit<8> WRITTEN    = 0;
const bit<8> NO_REPORT  = 1; // other traffic, which is forwarded
const bit<8> NO_COPIES  = 2; // a redundancy of 0
const bit<8> NOT_SERVED = 3; // another primitive, another length

const bit<8> COPIES_MAX = 4;

// What separates copies in the hash: the golden ratio.
const bit<64> STEP = 0x9e3779b97f4a7c15;

struct empty_t {}

struct dta_headers_t {
    arrival_t       arrival;
    ethernet_t      ethernet;
    ipv4_t          ipv4;
    udp_t           udp;
    dta_base_t      base;
    dta_sequence_t  sequence;
    dta_key_write_t key_write;
    payload_t       padding;
    bth_t           bth;
    reth_t          reth;
    dta_slot_t      slot;
    icrc_t          icrc;
}

struct meta_t {
    bit<32> end; // of the IP packet, from the start of the frame
    bit<8>  outcome;
    bit<8>  copies;
    bit<8>  is_connected;
    bit<64> high; // hash of the key, 128 bits
    bit<64> low;
    bit<64> part_high;
    bit<64> part_low;
    bit<64> mix;
    bit<64> seed;
    bit<64> va;
    bit<32> slot_shift;
    bit<32> qpn;
    bit<32> rkey;
    bit<32> first_psn;
    bit<32> psn;
    bit<32> checksum;
    bit<32> crc;
}

// Compares lengths before it extracts, as the shared parser does.
parser Parse(packet_in packet, out dta_headers_t h, inout meta_t m) {
    state start {
        packet.extract(h.arrival);
        packet.extract(h.ethernet);
        m.outcome = NO_REPORT;
        transition select(h.ethernet.type, h.arrival.captured_len < 42) {
            (TYPE_IPV4, false): ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(h.ipv4);
        transition select(h.ipv4.version_ihl, h.ipv4.fragment & 0x3fff, h.ipv4.protocol) {
            (0x45, 0, PROTOCOL_UDP): udp;
            default: accept;
        }
    }
    state udp {
        packet.extract(h.udp);
        m.end = (bit<32>)h.udp.length + 34;
        transition select(h.udp.destination_port, (bit<32>)h.ipv4.total_len == (bit<32>)h.udp.length + 20,
                          m.end > h.arrival.captured_len) {
            (PORT_DTA, true, false): report;
            default: accept;
        }
    }
    // 11 bytes with a base header of 2 bytes, 12 with one of 3.
    state report {
        m.outcome = NOT_SERVED;
        transition select(h.udp.length) {
            19: base;
            20: base_and_sequence;
            default: accept;
        }
    }
    state base {
        packet.extract(h.base);
        transition primitive;
    }
    state base_and_sequence {
        packet.extract(h.base);
        packet.extract(h.sequence);
        transition primitive;
    }
    state primitive {
        transition select(h.base.opcode) { DTA_KEY_WRITE: key_write; default: accept; }
    }
    state key_write {
        packet.extract(h.key_write);
        m.outcome = NO_COPIES;
        transition select(h.key_write.redundancy) { 0: accept; default: copies; }
    }
    state copies {
        m.outcome = WRITTEN;
        m.copies = h.key_write.redundancy < COPIES_MAX ? h.key_write.redundancy : COPIES_MAX;
        // Frames are padded to 60 bytes.
        transition select(h.arrival.captured_len - m.end) { 0: accept; default: padding; }
    }
    state padding {
        packet.extract(h.padding, (h.arrival.captured_len - m.end - 1) << 3);
        transition accept;
    }
}

parser IngressParser(packet_in packet, out dta_headers_t h, inout meta_t m, in psa_ingress_parser_input_metadata_t i,
                     in empty_t resubmitted, in empty_t recirculated) {
    Parse() parse;
    state start {
        parse.apply(packet, h, m);
        transition accept;
    }
}

control Ingress(inout dta_headers_t h, inout meta_t m, in psa_ingress_input_metadata_t i,
                inout psa_ingress_output_metadata_t o) {
    Register<bit<64>, bit<8>>(4, 0) outcomes;

    apply {
        bit<64> count = outcomes.read(m.outcome);
        outcomes.write(m.outcome, count + 1);
        if (m.outcome == WRITTEN) {
            // Group N has N members, with the instances 0 to N - 1, at the collector's port.
            multicast(o, (MulticastGroup_t)(MulticastGroupUint_t)m.copies);
        } else if (m.outcome == NO_REPORT) {
            send_to_port(o, (PortId_t)PORT_OTHERS);
        } else {
            ingress_drop(o);
        }
    }
}

// The whole packet, as it came: egress reads it again.
control IngressDeparser(packet_out packet, out empty_t cloned, out empty_t resubmitted, out empty_t normal,
                        inout dta_headers_t h, in meta_t m, in psa_ingress_output_metadata_t o) {
    apply {
        packet.emit(h.arrival);
        packet.emit(h.ethernet);
        packet.emit(h.ipv4);
        packet.emit(h.udp);
        packet.emit(h.base);
        packet.emit(h.sequence);
        packet.emit(h.key_write);
        packet.emit(h.padding);
    }
}

parser EgressParser(packet_in packet, out dta_headers_t h, inout meta_t m, in psa_egress_parser_input_metadata_t i,
                    in empty_t normal, in empty_t cloned_i, in empty_t cloned_e) {
    Parse() parse;
    state start {
        parse.apply(packet, h, m);
        transition accept;
    }
}

control Egress(inout dta_headers_t h, inout meta_t m, in psa_egress_input_metadata_t i,
               inout psa_egress_output_metadata_t o) {
    Register<bit<32>, bit<32>>(1, 0) psn; // packets of the connection
    Hash<bit<32>>(PSA_HashAlgorithm_t.CRC32) icrc;

    bit<32> out_port = 0; // one collector
    bit<8> byte0 = h.key_write.key0;
    bit<8> byte1 = h.key_write.key1;
    bit<8> byte2 = h.key_write.key2;
    bit<8> byte3 = h.key_write.key3;

    action connect(bit<48> dst_mac, bit<48> src_mac, bit<32> src, bit<32> dst, bit<16> checksum, bit<16> source_port,
                   bit<32> qpn, bit<32> first_psn, bit<32> rkey, bit<64> va, bit<32> slot_shift, bit<64> seed) {
        h.ethernet.dst = dst_mac;
        h.ethernet.src = src_mac;
        h.ipv4.src = src;
        h.ipv4.dst = dst;
        h.ipv4.checksum = checksum; // always the same
        h.udp.source_port = source_port;
        m.qpn = qpn;
        m.first_psn = first_psn;
        m.rkey = rkey;
        m.va = va;
        m.slot_shift = slot_shift;
        m.seed = seed;
        m.is_connected = 1;
    }
    action part(bit<64> high, bit<64> low) {
        m.part_high = high;
        m.part_low = low;
    }
    action add_part() {
        m.low = m.low + m.part_low;
        m.high = m.high + m.part_high + (m.low < m.part_low ? 64w1 : 0);
    }
    // The finalizer of splitmix64. The factors are constants: sums of shifts, where a target cannot multiply.
    action mix64() {
        m.mix = (m.mix ^ (m.mix >> 30)) * 0xbf58476d1ce4e5b9;
        m.mix = (m.mix ^ (m.mix >> 27)) * 0x94d049bb133111eb;
        m.mix = m.mix ^ (m.mix >> 31);
    }

    table connection {
        key = { out_port: exact; }
        actions = { connect; NoAction; }
        default_action = NoAction();
        size = 4;
    }
    table key_0 {
        key = { byte0: exact; }
        actions = { part; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table key_1 {
        key = { byte1: exact; }
        actions = { part; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table key_2 {
        key = { byte2: exact; }
        actions = { part; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table key_3 {
        key = { byte3: exact; }
        actions = { part; NoAction; }
        default_action = NoAction();
        size = 256;
    }

    apply {
        // Other traffic passes.
        if (m.outcome == WRITTEN) {
            m.is_connected = 0;
            connection.apply();
            if (m.is_connected == 0) {
                egress_drop(o);
            } else {
                m.high = 0;
                m.low = 0;
                m.part_high = 0;
                m.part_low = 0;
                key_0.apply();
                add_part();
                key_1.apply();
                add_part();
                key_2.apply();
                add_part();
                key_3.apply();
                add_part();
                m.mix = m.low ^ (m.high << 29 | m.high >> 35) ^ m.seed;
                mix64();
                m.checksum = m.mix[31:0] == 0 ? 32w1 : m.mix[31:0];
                // The place of copy 0 is in the hash; others mix it again.
                if (i.instance != (EgressInstance_t)0) {
                    if (i.instance == (EgressInstance_t)1) { m.mix = m.mix + STEP; }
                    else if (i.instance == (EgressInstance_t)2) { m.mix = m.mix + 2 * STEP; }
                    else { m.mix = m.mix + 3 * STEP; }
                    mix64();
                }
                // A power of two of slots, of 8 bytes.
                m.va = m.va + (((m.mix >> 32) >> (bit<8>)m.slot_shift) << 3);
                bit<32> sent = psn.read(out_port);
                psn.write(out_port, sent + 1);
                m.psn = ((sent + m.first_psn) & 0xffffff) | BTH_ASK;

                h.ipv4.tos = 0;
                h.ipv4.total_len = 68;
                h.ipv4.identification = 0;
                h.ipv4.fragment = 0x4000;
                h.ipv4.ttl = 64;
                h.udp.destination_port = PORT_ROCEV2;
                h.udp.length = 48;
                h.udp.checksum = 0;
                h.bth.setValid();
                h.bth = { WRITE_ONLY, BTH_MIGRATED, PARTITION_ALL, m.qpn, m.psn };
                h.reth.setValid();
                h.reth = { m.va, m.rkey, 8 };
                h.slot.setValid();
                h.slot.checksum = m.checksum[7:0] ++ m.checksum[15:8] ++ m.checksum[23:16] ++ m.checksum[31:24];
                h.slot.data = h.key_write.data;
                // Ones in place of InfiniBand's route header, and of all that routers change (IBTA annex A17).
                m.crc = icrc.get_hash({
                    64w0xffffffffffffffff,
                    8w0x45, 8w0xff, 16w68, 16w0, 16w0x4000, 8w0xff, PROTOCOL_UDP, 16w0xffff, h.ipv4.src, h.ipv4.dst,
                    h.udp.source_port, PORT_ROCEV2, 16w48, 16w0xffff,
                    WRITE_ONLY, BTH_MIGRATED, PARTITION_ALL, m.qpn | 0xff000000, m.psn,
                    m.va, m.rkey, 32w8, h.slot.checksum, h.slot.data
                });
                h.icrc.setValid();
                h.icrc.value = m.crc[7:0] ++ m.crc[15:8] ++ m.crc[23:16] ++ m.crc[31:24];
                h.base.setInvalid();
                h.sequence.setInvalid();
                h.key_write.setInvalid();
                h.padding.setInvalid();
            }
        }
    }
}

control EgressDeparser(packet_out packet, out empty_t cloned, out empty_t recirculated, inout dta_headers_t h,
                       in meta_t m, in psa_egress_output_metadata_t o, in psa_egress_deparser_input_metadata_t d) {
    apply {
        packet.emit(h.ethernet);
        packet.emit(h.ipv4);
        packet.emit(h.udp);
        packet.emit(h.bth);
        packet.emit(h.reth);
        packet.emit(h.slot);
        packet.emit(h.icrc);
    }
}

IngressPipeline(IngressParser(), Ingress(), IngressDeparser()) ingress;
EgressPipeline(EgressParser(), Egress(), EgressDeparser()) egress;
PSA_Switch(ingress, PacketReplicationEngine(), egress, BufferingQueueingEngine()) main;
