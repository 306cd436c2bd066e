// ALT's buffer (§3.1, §3.4): every packet becomes a linked record, which an RDMA WRITE puts into a page of a
// collector's memory. A record names the addresses of the two before it, and one starts at each block, so that a reader
// finds the records after a lost one.
//
//   next                     register: where the next record goes; at the end of a block, the next block's start
//   previous_0, previous_1   registers: where the two records before are in the page
//   buffer                   page -> its memory, queue pair and record_magic
//   psn, records             registers: packets of the connection, records by page
//
// Each array has one access per packet, a read and a write at the same index, as a stateful ALU does.
//
// The format is that of docs/formats/stream.md, with a redundancy of 2. The header of a page has a keyed tag, so the
// control plane writes it, and hands pages over. The payload has 64 bytes: 16 of sizes and time, and the first 48 of
// the frame.
//
// alt_buffer.spec is the same program for DPDK, written by hand.

#include <core.p4>
#include <psa.p4>
#include "include/dta.p4"

const PortIdUint_t PORT_COLLECTOR = 0;
const PortIdUint_t PORT_SHORT     = 1; // frames of less than 48 bytes, which make no record

#define BLOCK_BITS 16
#define PAGE_BITS  20

const bit<64> BLOCK       = 1 << BLOCK_BITS;
const bit<64> PAGE        = 1 << PAGE_BITS;
const bit<64> PAGE_HEADER = 64;
const bit<64> RECORD      = 80; // head 16, payload 64
const bit<64> PAGES       = 4;  // in turn

const bit<8> UC_WRITE_ONLY = 0x2a; // (IBTA table 38): lost packets are not sent again

struct empty_t {}

// The first bytes of a frame.
header data_t {
    bit<64> word_0;
    bit<64> word_1;
    bit<64> word_2;
    bit<64> word_3;
    bit<64> word_4;
    bit<64> word_5;
}

// Little-endian.
header record_t {
    bit<32> magic;
    bit<32> len;
    bit<32> previous_0;
    bit<32> previous_1;
}

struct alt_headers_t {
    arrival_t  arrival;
    data_t     data;
    payload_t  rest;
    ethernet_t ethernet;
    ipv4_t     ipv4;
    udp_t      udp;
    bth_t      bth;
    reth_t     reth;
    record_t   record;
    arrival_t  sizes;
    icrc_t     icrc;
}

struct meta_t {
    bit<8>  is_connected;
    bit<32> page;
    bit<32> magic;
    bit<32> qpn;
    bit<32> rkey;
    bit<32> first_psn;
    bit<64> va;
}

bit<32> swapped(in bit<32> word) { return word[7:0] ++ word[15:8] ++ word[23:16] ++ word[31:24]; }

parser IngressParser(packet_in packet, out alt_headers_t h, inout meta_t m, in psa_ingress_parser_input_metadata_t i,
                     in empty_t resubmitted, in empty_t recirculated) {
    state start {
        packet.extract(h.arrival);
        transition select(h.arrival.captured_len < 48) { true: accept; false: data; }
    }
    // The rest is taken off too, as it is not sent.
    state data {
        packet.extract(h.data);
        transition select(h.arrival.captured_len) { 48: accept; default: rest; }
    }
    state rest {
        packet.extract(h.rest, (h.arrival.captured_len - 49) << 3);
        transition accept;
    }
}

control Ingress(inout alt_headers_t h, inout meta_t m, in psa_ingress_input_metadata_t i,
                inout psa_ingress_output_metadata_t o) {
    Register<bit<64>, bit<32>>(1, 0) next; // page * PAGE + place in the page
    Register<bit<64>, bit<32>>(1, 0) previous_0;
    Register<bit<64>, bit<32>>(1, 0) previous_1;
    Register<bit<32>, bit<32>>(1, 0) psn;
    Register<bit<64>, bit<32>>(4, 0) records;
    Hash<bit<32>>(PSA_HashAlgorithm_t.CRC32) icrc;

    action write_to(bit<48> dst_mac, bit<48> src_mac, bit<32> src, bit<32> dst, bit<16> checksum, bit<16> source_port,
                    bit<32> qpn, bit<32> first_psn, bit<32> rkey, bit<64> va, bit<32> magic) {
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
        m.magic = magic;
        m.is_connected = 1;
    }

    table buffer {
        key = { m.page: exact; }
        actions = { write_to; NoAction; }
        default_action = NoAction();
        size = 4;
    }

    apply {
        if (h.data.isValid()) {
            bit<64> at = next.read(0);
            // Not across a block; a page begins with its header.
            at = (at & (BLOCK - 1)) > BLOCK - RECORD ? (at | (BLOCK - 1)) + 1 : at;
            bool is_new = (at & (PAGE - 1)) == 0;
            at = is_new ? at + PAGE_HEADER : at;
            next.write(0, at + RECORD);
            bit<64> offset = at & (PAGE - 1);

            bit<64> before = previous_0.read(0);
            previous_0.write(0, offset);
            before = is_new ? 0 : before;
            bit<64> before_that = previous_1.read(0);
            previous_1.write(0, before);
            before_that = is_new ? 0 : before_that;

            m.page = (bit<32>)((at >> PAGE_BITS) & (PAGES - 1));
            m.is_connected = 0;
            h.ethernet.setValid();
            h.ipv4.setValid();
            h.udp.setValid();
            buffer.apply();
            if (m.is_connected == 0) {
                ingress_drop(o);
            } else {
                bit<64> count = records.read(m.page);
                records.write(m.page, count + 1);
                bit<32> sent = psn.read(0);
                psn.write(0, sent + 1);
                bit<32> number = (sent + m.first_psn) & 0xffffff;
                m.va = m.va + offset;

                h.record.setValid();
                h.record = { swapped((bit<32>)offset ^ m.magic), 0x40000000, swapped((bit<32>)before),
                             swapped((bit<32>)before_that) };
                h.sizes.setValid();
                h.sizes = h.arrival;
                h.ethernet.type = TYPE_IPV4;
                h.ipv4 = { 0x45, 0, 140, 0, 0x4000, 64, PROTOCOL_UDP, h.ipv4.checksum, h.ipv4.src, h.ipv4.dst };
                h.udp = { h.udp.source_port, PORT_ROCEV2, 120, 0 };
                h.bth.setValid();
                h.bth = { UC_WRITE_ONLY, BTH_MIGRATED, PARTITION_ALL, m.qpn, number };
                h.reth.setValid();
                h.reth = { m.va, m.rkey, (bit<32>)RECORD };
                // Ones in place of InfiniBand's route header, and of all that routers change (IBTA annex A17).
                bit<32> crc = icrc.get_hash({
                    64w0xffffffffffffffff,
                    8w0x45, 8w0xff, 16w140, 16w0, 16w0x4000, 8w0xff, PROTOCOL_UDP, 16w0xffff, h.ipv4.src, h.ipv4.dst,
                    h.udp.source_port, PORT_ROCEV2, 16w120, 16w0xffff,
                    UC_WRITE_ONLY, BTH_MIGRATED, PARTITION_ALL, m.qpn | 0xff000000, number,
                    m.va, m.rkey, (bit<32>)RECORD,
                    h.record.magic, h.record.len, h.record.previous_0, h.record.previous_1,
                    h.sizes.wire_len, h.sizes.captured_len, h.sizes.ts_ns,
                    h.data.word_0, h.data.word_1, h.data.word_2, h.data.word_3, h.data.word_4, h.data.word_5
                });
                h.icrc.setValid();
                h.icrc.value = swapped(crc);
                h.rest.setInvalid();
                send_to_port(o, (PortId_t)PORT_COLLECTOR);
            }
        } else {
            send_to_port(o, (PortId_t)PORT_SHORT);
        }
    }
}

control IngressDeparser(packet_out packet, out empty_t cloned, out empty_t resubmitted, out empty_t normal,
                        inout alt_headers_t h, in meta_t m, in psa_ingress_output_metadata_t o) {
    apply {
        packet.emit(h.ethernet);
        packet.emit(h.ipv4);
        packet.emit(h.udp);
        packet.emit(h.bth);
        packet.emit(h.reth);
        packet.emit(h.record);
        packet.emit(h.sizes);
        packet.emit(h.data);
        packet.emit(h.icrc);
    }
}

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
