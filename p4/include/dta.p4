// Headers of Direct Telemetry Access, in the form of its published programs, and of RoCEv2.

#ifndef STRATA_DTA
#define STRATA_DTA

#include "headers.p4"

const bit<16> PORT_DTA    = 40040;
const bit<16> PORT_ROCEV2 = 4791;

const bit<8> DTA_KEY_WRITE = 1;

// The base header has 2 bytes, or 3 with a sequence number between opcode and flags; flags are in the next header.
header dta_base_t {
    bit<8> opcode;
}

header dta_sequence_t {
    bit<8> sequence;
}

// Data of 4 bytes.
header dta_key_write_t {
    bit<8>  flags;
    bit<8>  redundancy;
    bit<8>  key0;
    bit<8>  key1;
    bit<8>  key2;
    bit<8>  key3;
    bit<32> data;
}

// Base transport header (IBTA §9.2). The upper 8 bits of both words are reserved, except for the first bit of `psn`,
// which asks for an acknowledgement.
header bth_t {
    bit<8>  opcode;
    bit<8>  flags;
    bit<16> partition;
    bit<32> qpn;
    bit<32> psn;
}

// RDMA extended transport header (IBTA §9.3.3).
header reth_t {
    bit<64> va;
    bit<32> rkey;
    bit<32> len;
}

// A slot of Key-Write: a checksum of the key, little-endian, and data.
header dta_slot_t {
    bit<32> checksum;
    bit<32> data;
}

// Invariant CRC, little-endian.
header icrc_t {
    bit<32> value;
}

const bit<8>  WRITE_ONLY    = 0x0a;       // RC RDMA WRITE Only (IBTA table 38)
const bit<8>  BTH_MIGRATED  = 0x40;
const bit<32> BTH_ASK       = 0x80000000; // an acknowledgement
const bit<16> PARTITION_ALL = 0xffff;

#endif
