// TitanLog's sketch (§IV-A): features of flows in two layers of buckets, in the arithmetic of a switch.
//
//   two CRCs of the flow key -> fingerprint -> a place in each layer; both directions are one flow
//   window                   register: number of the window, and its epoch, which says whether a bucket is of this one
//   tag_0, tag_1             registers: whose bucket; the flow's, unused in this window, or another flow's: next layer
//   times_0, times_1         registers: first and last arrival -> delay since the packet before
//   square_size, _delay      size, delay -> square, by the four leading bits (§IV-A)
//   the other registers      sums, extremes and squares of the layer that has the flow
//
// Each array has one access per packet, a read and a write at the same index, as a stateful ALU does; of both layers'
// arrays after the tags, a packet reaches only one.
//
// The features of a packet's flow leave by port 0, in place of the packet: this program is for comparison, and
// titanlog.p4 does not have these stages yet. Packets of flows without a bucket leave by port 1, packets beyond the
// parser by port 2.
//
// titanlog_sketch.spec is the same program for DPDK, written by hand.

#include <core.p4>
#include <psa.p4>
#include "include/headers.p4"

const PortIdUint_t PORT_FEATURES = 0;
const PortIdUint_t PORT_NO_BUCKET = 1;
const PortIdUint_t PORT_BEYOND = 2;

// A power of two of ns, as there is no division: 1.07 s, of 2^24 ticks of 64 ns.
#define WINDOW_BITS 30
#define TICK_BITS 6

const bit<64> SQUARES_MAX = 0xffffffffffff;
const bit<64> NO_DELAY    = 0xffffffff00000000; // the smallest of none, the largest of none

struct empty_t {}

// Units: bytes, ticks, and their squares.
header features_t {
    bit<8>  layer;
    bit<16> packets;
    bit<32> bytes;
    bit<16> size_min;
    bit<16> size_max;
    bit<64> size_squares;
    bit<32> delay_sum;
    bit<32> delay_min;
    bit<32> delay_max;
    bit<64> delay_squares;
}

struct sketch_headers_t {
    arrival_t  arrival;
    ethernet_t ethernet;
    ipv4_t     ipv4;
    udp_t      udp; // of TCP, its first 8 bytes
    payload_t  rest;
    features_t features;
}

struct meta_t {
    bit<8>  is_flow;
    bit<64> size;
    bit<64> delay;
    bit<64> size_square;
    bit<64> delay_square;
    bit<64> times;
    bit<64> packets;
    bit<64> bytes;
    bit<64> sizes;
    bit<64> size_squares;
    bit<64> delays;
    bit<64> delay_squares;
}

bit<64> least(in bit<64> a, in bit<64> b) { return a < b ? a : b; }
bit<64> most(in bit<64> a, in bit<64> b) { return a > b ? a : b; }

parser IngressParser(packet_in packet, out sketch_headers_t h, inout meta_t m, in psa_ingress_parser_input_metadata_t i,
                     in empty_t resubmitted, in empty_t recirculated) {
    state start {
        packet.extract(h.arrival);
        packet.extract(h.ethernet);
        m.is_flow = 0;
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
    // The rest is taken off too: a packet with a bucket leaves as its features alone.
    state ports {
        packet.extract(h.udp);
        m.is_flow = 1;
        transition select(h.arrival.captured_len) { 42: accept; default: rest; }
    }
    state rest {
        packet.extract(h.rest, (h.arrival.captured_len - 43) << 3);
        transition accept;
    }
}

control Ingress(inout sketch_headers_t h, inout meta_t m, in psa_ingress_input_metadata_t i,
                inout psa_ingress_output_metadata_t o) {
    Register<bit<64>, bit<32>>(1, 0) window; // number << 16 | epoch
    Register<bit<64>, bit<32>>(4096, 0) tag_0;          // identity 48, epoch 16
    Register<bit<64>, bit<32>>(4096, 0) times_0;        // first and last arrival, ticks, 32 bits each
    Register<bit<64>, bit<32>>(4096, 0) packets_0;
    Register<bit<64>, bit<32>>(4096, 0) bytes_0;
    Register<bit<64>, bit<32>>(4096, 0) sizes_0;        // smallest and largest, 16 bits each
    Register<bit<64>, bit<32>>(4096, 0) size_squares_0;
    Register<bit<64>, bit<32>>(4096, 0) delays_0;       // smallest and largest, 32 bits each
    Register<bit<64>, bit<32>>(4096, 0) delay_squares_0;
    Register<bit<64>, bit<32>>(4096, 0) tag_1;          // identity 48, epoch 16
    Register<bit<64>, bit<32>>(4096, 0) times_1;        // first and last arrival, ticks, 32 bits each
    Register<bit<64>, bit<32>>(4096, 0) packets_1;
    Register<bit<64>, bit<32>>(4096, 0) bytes_1;
    Register<bit<64>, bit<32>>(4096, 0) sizes_1;        // smallest and largest, 16 bits each
    Register<bit<64>, bit<32>>(4096, 0) size_squares_1;
    Register<bit<64>, bit<32>>(4096, 0) delays_1;       // smallest and largest, 32 bits each
    Register<bit<64>, bit<32>>(4096, 0) delay_squares_1;
    Hash<bit<32>>(PSA_HashAlgorithm_t.CRC32) crc_a;
    Hash<bit<32>>(PSA_HashAlgorithm_t.CRC32_CUSTOM) crc_b; // Castagnoli's, from 0, not inverted

    action set_size_square(bit<64> square) { m.size_square = square; }
    action set_delay_square(bit<64> square) { m.delay_square = square; }

    table square_size {
        key = { m.size: ternary; }
        actions = { set_size_square; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table square_delay {
        key = { m.delay: ternary; }
        actions = { set_delay_square; NoAction; }
        default_action = NoAction();
        size = 256;
    }

    apply {
        bit<8> layer = 2; // of the flow's bucket, 2 without one
        if (m.is_flow == 1) {
            // The smaller end first.
            bit<48> low_end = h.ipv4.src ++ h.udp.source_port;
            bit<48> high_end = h.ipv4.dst ++ h.udp.destination_port;
            if (low_end > high_end) {
                low_end = high_end;
                high_end = h.ipv4.src ++ h.udp.source_port;
            }
            bit<64> fingerprint = crc_a.get_hash({ low_end, high_end, h.ipv4.protocol })
                                  ++ crc_b.get_hash({ low_end, high_end, h.ipv4.protocol });

            // A packet of the window before, which came late, stays in this one.
            bit<64> number = h.arrival.ts_ns >> WINDOW_BITS;
            bit<64> old = window.read(0);
            bit<64> now_window = number + 1 - (old >> 16) > 1 ? number << 16 | ((old + 1) & 0xffff) : old;
            window.write(0, now_window);
            bit<16> epoch = now_window[15:0];
            bit<64> begin = (now_window >> 16) << WINDOW_BITS;
            bit<64> now = h.arrival.ts_ns > begin ? (h.arrival.ts_ns - begin) >> TICK_BITS : 0;
            m.size = (bit<64>)(h.arrival.wire_len < 65535 ? h.arrival.wire_len : 65535);

            bit<64> want_0 = fingerprint << 16 | (bit<64>)epoch;
            bit<64> want_1 = (fingerprint >> 16) << 16 | (bit<64>)epoch;
            bit<32> place_0 = (bit<32>)(fingerprint >> 52);
            bit<32> place_1 = (bit<32>)(fingerprint & 0xfff);
            bool fresh;
            old = tag_0.read(place_0);
            fresh = old[15:0] != epoch;
            bit<64> kept_0 = fresh ? want_0 : old;
            tag_0.write(place_0, kept_0);
            if (kept_0 == want_0) {
                layer = 0;
                old = times_0.read(place_0);
                m.delay = now > (bit<64>)old[31:0] ? now - (bit<64>)old[31:0] : 0;
                m.times = fresh ? now << 32 | now : old + m.delay;
                times_0.write(place_0, m.times);
            } else {
                old = tag_1.read(place_1);
                fresh = old[15:0] != epoch;
                bit<64> kept_1 = fresh ? want_1 : old;
                tag_1.write(place_1, kept_1);
                if (kept_1 == want_1) {
                    layer = 1;
                    old = times_1.read(place_1);
                    m.delay = now > (bit<64>)old[31:0] ? now - (bit<64>)old[31:0] : 0;
                    m.times = fresh ? now << 32 | now : old + m.delay;
                    times_1.write(place_1, m.times);
                }
            }

            if (layer != 2) {
                m.size_square = 0;
                m.delay_square = 0;
                square_size.apply();
                square_delay.apply();
                bit<64> delay_16 = m.delay >> 8 << 8; // a register of 16 bits, of 256 ticks
                bit<64> low;
                bit<64> high;
                if (layer == 0) {
                    old = packets_0.read(place_0);
                    m.packets = fresh ? 1 : old == 0xffff ? old : old + 1;
                    packets_0.write(place_0, m.packets);
                    old = bytes_0.read(place_0);
                    m.bytes = fresh ? m.size : old + m.size > 0xffffffff ? 0xffffffff : old + m.size;
                    bytes_0.write(place_0, m.bytes);
                    old = sizes_0.read(place_0);
                    low = fresh ? m.size : least(old >> 16, m.size);
                    high = fresh ? m.size : most(old & 0xffff, m.size);
                    m.sizes = low << 16 | high;
                    sizes_0.write(place_0, m.sizes);
                    old = size_squares_0.read(place_0);
                    m.size_squares = fresh ? m.size_square : least(old + m.size_square, SQUARES_MAX);
                    size_squares_0.write(place_0, m.size_squares);
                    old = delays_0.read(place_0);
                    low = least(old >> 32, delay_16);
                    high = most(old & 0xffffffff, delay_16);
                    m.delays = fresh ? NO_DELAY : low << 32 | high;
                    delays_0.write(place_0, m.delays);
                    old = delay_squares_0.read(place_0);
                    m.delay_squares = fresh ? 0 : least(old + m.delay_square, SQUARES_MAX);
                    delay_squares_0.write(place_0, m.delay_squares);
                } else {
                    old = packets_1.read(place_1);
                    m.packets = fresh ? 1 : old == 0xffff ? old : old + 1;
                    packets_1.write(place_1, m.packets);
                    old = bytes_1.read(place_1);
                    m.bytes = fresh ? m.size : old + m.size > 0xffffffff ? 0xffffffff : old + m.size;
                    bytes_1.write(place_1, m.bytes);
                    old = sizes_1.read(place_1);
                    low = fresh ? m.size : least(old >> 16, m.size);
                    high = fresh ? m.size : most(old & 0xffff, m.size);
                    m.sizes = low << 16 | high;
                    sizes_1.write(place_1, m.sizes);
                    old = size_squares_1.read(place_1);
                    m.size_squares = fresh ? m.size_square : least(old + m.size_square, SQUARES_MAX);
                    size_squares_1.write(place_1, m.size_squares);
                    old = delays_1.read(place_1);
                    low = least(old >> 32, delay_16);
                    high = most(old & 0xffffffff, delay_16);
                    m.delays = fresh ? NO_DELAY : low << 32 | high;
                    delays_1.write(place_1, m.delays);
                    old = delay_squares_1.read(place_1);
                    m.delay_squares = fresh ? 0 : least(old + m.delay_square, SQUARES_MAX);
                    delay_squares_1.write(place_1, m.delay_squares);
                }
                h.features.setValid();
                h.features = {
                    layer, (bit<16>)m.packets, (bit<32>)m.bytes, m.sizes[31:16], m.sizes[15:0], m.size_squares,
                    m.times[31:0] - m.times[63:32], m.packets == 1 ? 32w0 : m.delays[63:32], m.delays[31:0],
                    m.delay_squares
                };
                h.ethernet.setInvalid();
                h.ipv4.setInvalid();
                h.udp.setInvalid();
                h.rest.setInvalid();
            }
        }
        if (layer != 2) {
            send_to_port(o, (PortId_t)PORT_FEATURES);
        } else if (m.is_flow == 1) {
            send_to_port(o, (PortId_t)PORT_NO_BUCKET);
        } else {
            send_to_port(o, (PortId_t)PORT_BEYOND);
        }
    }
}

control IngressDeparser(packet_out packet, out empty_t cloned, out empty_t resubmitted, out empty_t normal,
                        inout sketch_headers_t h, in meta_t m, in psa_ingress_output_metadata_t o) {
    apply {
        packet.emit(h.features);
        packet.emit(h.ethernet);
        packet.emit(h.ipv4);
        packet.emit(h.udp);
        packet.emit(h.rest);
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
