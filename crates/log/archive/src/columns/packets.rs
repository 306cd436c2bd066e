//! The table `packets`: one row per packet, ordered by flow, direction, arrival.

use std::num::TryFromIntError;

use strata_tables::{Coding, Column, Kind, NULL, Narrows, Spec, Unit, columns};

use crate::columns::filler::{End, Filler};
use crate::columns::row::Row;
use crate::run::{Run, has, layout};

use Coding::{Codes, Delta, Dictionary, Plain};
use Kind::{Bool, Bytes, Float, Int32, Int64, Text, Time};

/// A column of `packets`: its spec, how it is filled from the packets of a run, and how its value
/// is stored in a row that is read.
#[derive(Clone, Copy)]
struct PacketSpec {
    spec: Spec,
    fill: fn(&mut Filler<'_>, &mut Column),
    read: Read,
    present: Present,
}

/// In which runs a column has values.
#[derive(Clone, Copy)]
enum Present {
    Always,
    /// In runs with a row that has this flag of [`has`].
    If(u32),
    /// In runs with payload.
    IfPayload,
}

/// Where to store a value that was read.
#[derive(Clone, Copy)]
pub(crate) enum Read {
    Int(fn(&mut Row<'_>, i64) -> Result<(), TryFromIntError>),
    Float(fn(&mut Row<'_>, Option<f32>)),
    Bytes(for<'a> fn(&mut Row<'a>, &'a [u8])),
}

const fn column(spec: Spec, fill: fn(&mut Filler<'_>, &mut Column), read: Read) -> PacketSpec {
    PacketSpec {
        spec,
        fill,
        read,
        present: Present::Always,
    }
}

impl PacketSpec {
    const fn only_if(mut self, bit: u32) -> Self {
        self.present = Present::If(bit);
        self
    }

    const fn only_with_payload(mut self) -> Self {
        self.present = Present::IfPayload;
        self
    }

    /// Whether some row of a run may have a value.
    fn is_in(&self, run: &Run) -> bool {
        match self.present {
            Present::Always => true,
            Present::If(bit) => run.any_has & bit != 0,
            Present::IfPayload => !run.with_payload.is_empty(),
        }
    }
}

/// An integer of the row with fewer bits than the table's.
macro_rules! int {
    ($field:ident) => {
        Read::Int(|row, value| {
            row.$field = value.try_into()?;
            Ok(())
        })
    };
}

/// As `int`, if the row has a value.
macro_rules! some {
    ($field:ident) => {
        Read::Int(|row, value| {
            row.$field = Some(value.try_into()?);
            Ok(())
        })
    };
}

/// An unsigned integer whose bits are stored in the table.
macro_rules! bits {
    ($field:ident) => {
        Read::Int(|row, value| {
            row.$field = value.cast_unsigned();
            Ok(())
        })
    };
}

macro_rules! text {
    ($field:ident) => {
        Read::Bytes(|row, value| row.$field = value)
    };
}

macro_rules! bytes {
    ($field:ident) => {
        Read::Bytes(|row, value| row.$field = Some(value))
    };
}

columns! {
    /// The columns of `packets`.
    enum PacketColumn of PacketSpec {
        Time: column(
            Spec::new("time", Time, Delta, "arrival").narrows(Narrows::Time),
            |f, c| f.int64(c, |of, at| of.run.time[at.row()].cast_signed()),
            bits!(time),
        ),
        LateNs: column(
            Spec::new(
                "late_ns",
                Int64,
                Delta,
                "latest time of the packets before this one, minus its own time; 0 if in order",
            )
            .unit(Unit::Nanoseconds)
            .of_run(),
            |f, c| {
                let any = f.run().any_has & has::LATE != 0;
                f.int64_if(c, any, |of, at| of.run.late[at.row()].cast_signed());
            },
            bits!(late),
        ),
        Tie: column(
            Spec::new(
                "tie",
                Int32,
                Delta,
                "number among the packets of the same `time + late_ns`, from 0",
            )
            .of_run(),
            |f, c| f.int32(c, |of, at| of.run.tie[at.row()].cast_signed()),
            int!(tie),
        ),
        FlowId: column(
            Spec::new(
                "flow_id",
                Int64,
                Delta,
                "of the row in `flows`: (part << 32) + number",
            )
            .of_run(),
            |f, c| f.int64(c, |of, at| of.flow_ids[at.flow()]),
            int!(flow_id),
        ),
        Recording: column(
            Spec::new("recording", Int32, Codes, "number in `manifest.json`"),
            |f, c| f.one(c, f.recording()),
            int!(recording),
        ),
        Interface: column(
            Spec::new("interface", Int32, Codes, "number in `meta`"),
            |f, c| f.interfaces(c),
            int!(interface),
        ),
        Src: column(
            Spec::new(
                "src",
                Text,
                Codes,
                "innermost source address of IP; MAC address if not IP",
            )
            .narrows(Narrows::Address)
            .or_null(),
            |f, c| {
                f.coded(c, &f.addresses().entries, |of, at| {
                    of.address(at, End::Source)
                });
            },
            bytes!(src),
        ),
        Dst: column(
            Spec::new(
                "dst",
                Text,
                Codes,
                "innermost destination address, as `src`",
            )
            .narrows(Narrows::Address)
            .or_null(),
            |f, c| {
                f.coded(c, &f.addresses().entries, |of, at| {
                    of.address(at, End::Destination)
                });
            },
            bytes!(dst),
        ),
        SrcPort: column(
            Spec::new("src_port", Int32, Codes, "NULL where there is none").or_null(),
            |f, c| f.ints(c, |of, at| of.port(at, End::Source)),
            int!(src_port),
        ),
        DstPort: column(
            Spec::new("dst_port", Int32, Codes, "NULL where there is none").or_null(),
            |f, c| f.ints(c, |of, at| of.port(at, End::Destination)),
            int!(dst_port),
        ),
        Protocol: column(
            Spec::new("protocol", Int32, Codes, "of IP; NULL where there is none").or_null(),
            |f, c| f.ints(c, |of, at| of.protocol(at)),
            int!(protocol),
        ),
        TcpFlags: column(
            Spec::new(
                "tcp_flags",
                Int32,
                Codes,
                "the 12 bits after the data offset",
            )
            .or_null()
            .of_headers(),
            |f, c| {
                f.ints(c, |of, at| {
                    at.has(has::TCP_FLAGS)
                        .then_some(of.run.tcp_flags[at.row()].into())
                });
            },
            int!(tcp_flags),
        ),
        WireBytes: column(
            Spec::new(
                "wire_bytes",
                Int64,
                Codes,
                "length on the wire according to the capture",
            )
            .unit(Unit::Bytes),
            |f, c| f.ints(c, |of, at| Some(of.run.wire[at.row()].into())),
            int!(wire),
        ),
        CapturedBytes: column(
            Spec::new(
                "captured_bytes",
                Int64,
                Codes,
                "length in the capture; NULL: as `wire_bytes`",
            )
            .unit(Unit::Bytes)
            .or_null(),
            |f, c| {
                f.ints(c, |of, at| {
                    at.has(has::CAPTURED)
                        .then_some(of.run.captured[at.row()].into())
                });
            },
            some!(captured),
        )
        .only_if(has::CAPTURED),
        HeaderBytes: column(
            Spec::new("header_bytes", Int32, Codes, "kept bytes of the headers").unit(Unit::Bytes),
            |f, c| f.ints(c, |of, at| Some(of.run.header_len[at.row()].into())),
            int!(header_len),
        ),
        PayloadBytes: column(
            Spec::new(
                "payload_bytes",
                Int32,
                Codes,
                "kept bytes beyond the headers",
            )
            .unit(Unit::Bytes),
            |f, c| f.ints(c, |of, at| Some(of.run.payload_len[at.row()].into())),
            int!(payload_len),
        ),
        Class: column(
            Spec::new("class", Text, Codes, "as in an export's comments"),
            |f, c| f.of_verdicts(c, |verdict| &verdict.class_name),
            text!(class),
        ),
        Score: column(
            Spec::new("score", Float, Codes, "0 to 1; NULL if not dissected").or_null(),
            |f, c| f.scores(c),
            Read::Float(|row, value| row.score = value),
        ),
        Granularity: column(
            Spec::new("granularity", Text, Codes, "as in an export's comments"),
            |f, c| f.coded(c, f.keeps(), |of, at| of.run.keep[at.row()].code().into()),
            text!(granularity),
        ),
        Reason: column(
            Spec::new(
                "reason",
                Text,
                Codes,
                "decider, as in an export's comments: [block-file.md](block-file.md)",
            ),
            |f, c| f.of_verdicts(c, |verdict| &verdict.reason),
            text!(reason),
        ),
        FlowShare: column(
            Spec::new(
                "flow_share",
                Float,
                Codes,
                "share of all flows that was captured at the time of the packet (`--cpu`), up to 1",
            ),
            |f, c| f.shares(c),
            Read::Float(|row, value| row.flow_share = value.unwrap_or(1.0)),
        ),
        IpTos: column(
            Spec::new("ip_tos", Int32, Codes, "TOS, or traffic class of IPv6")
                .or_null()
                .of_headers(),
            |f, c| {
                f.ints(c, |of, at| {
                    (!at.is_raw()).then_some(of.run.tos[at.row()].into())
                });
            },
            int!(tos),
        ),
        IpTtl: column(
            Spec::new("ip_ttl", Int32, Codes, "TTL, or hop limit of IPv6")
                .or_null()
                .of_headers(),
            |f, c| {
                f.ints(c, |of, at| {
                    (!at.is_raw()).then_some(of.run.ttl[at.row()].into())
                });
            },
            int!(ttl),
        ),
        IpIdDiff: column(
            Spec::new(
                "ip_id_diff",
                Int32,
                Delta,
                "IPv4 identification minus the expected one, modulo 2^16; NULL: 0",
            )
            .or_null()
            .of_run()
            .of_headers(),
            |f, c| f.diffs(c, has::IP_ID, |of, at| of.run.ip_id[at.row()].into()),
            int!(ip_id),
        )
        .only_if(has::IP_ID),
        IpFragment: column(
            Spec::new(
                "ip_fragment",
                Int32,
                Codes,
                "flags and fragment offset of IPv4",
            )
            .or_null()
            .of_headers(),
            |f, c| {
                f.ints(c, |of, at| {
                    at.is(layout::V4)
                        .then_some(of.run.fragment[at.row()].into())
                });
            },
            int!(fragment),
        ),
        Ip6FlowLabel: column(
            Spec::new("ip6_flow_label", Int32, Codes, "flow label of IPv6")
                .or_null()
                .of_headers(),
            |f, c| {
                f.ints(c, |of, at| {
                    at.is(layout::V6)
                        .then_some(of.run.fragment[at.row()].into())
                });
            },
            int!(flow_label),
        ),
        Ip6NextHeader: column(
            Spec::new(
                "ip6_next_header",
                Int32,
                Codes,
                "of the fixed header; NULL: `protocol`",
            )
            .or_null()
            .of_headers(),
            |f, c| {
                f.ints(c, |of, at| {
                    at.has(has::NEXT_HEADER)
                        .then_some(of.run.next_header[at.row()].into())
                });
            },
            some!(next_header),
        )
        .only_if(has::NEXT_HEADER),
        IpLen: column(
            Spec::new(
                "ip_len",
                Int32,
                Codes,
                "total or payload length field; NULL: the packet ends where `wire_bytes` says",
            )
            .unit(Unit::Bytes)
            .or_null()
            .of_headers(),
            |f, c| {
                f.ints(c, |of, at| {
                    at.has(has::IP_LEN)
                        .then_some(of.run.ip_len[at.row()].into())
                });
            },
            some!(ip_len),
        )
        .only_if(has::IP_LEN),
        IpChecksum: column(
            Spec::new("ip_checksum", Int32, Delta, "NULL: correct")
                .or_null()
                .of_headers(),
            |f, c| {
                f.diffs(c, has::IP_CHECKSUM, |of, at| {
                    of.run.ip_checksum[at.row()].into()
                });
            },
            some!(ip_checksum),
        )
        .only_if(has::IP_CHECKSUM),
        IpOptions: column(
            Spec::new(
                "ip_options",
                Bytes,
                Dictionary,
                "IPv4 options, IPv6 extension headers",
            )
            .or_null()
            .of_headers(),
            |f, c| f.extra(c, |extra| extra.ip_options.clone()),
            bytes!(ip_options),
        )
        .only_if(has::EXTRA_IP_OPTIONS),
        TcpSeqDiff: column(
            Spec::new(
                "tcp_seq_diff",
                Int32,
                Delta,
                "sequence number minus the expected one, modulo 2^32; NULL: 0",
            )
            .or_null()
            .of_run()
            .of_headers(),
            |f, c| f.diffs(c, has::SEQ, |of, at| of.run.seq[at.row()]),
            int!(seq),
        ),
        TcpAckDiff: column(
            Spec::new(
                "tcp_ack_diff",
                Int32,
                Delta,
                "acknowledgement minus the expected one, modulo 2^32; NULL: 0",
            )
            .or_null()
            .of_run()
            .of_headers(),
            |f, c| f.diffs(c, has::ACK, |of, at| of.run.ack[at.row()]),
            int!(ack),
        ),
        TcpWindow: column(
            Spec::new("tcp_window", Int32, Codes, "unscaled")
                .or_null()
                .of_headers(),
            |f, c| {
                f.ints(c, |of, at| {
                    at.is_tcp().then_some(of.run.window[at.row()].into())
                });
            },
            int!(window),
        ),
        TcpTsvalDiff: column(
            Spec::new(
                "tcp_tsval_diff",
                Int32,
                Delta,
                "TSval of the timestamp option, minus the expected one; NULL: 0",
            )
            .or_null()
            .of_run()
            .of_headers(),
            |f, c| f.diffs(c, has::TSVAL, |of, at| of.run.tsval[at.row()]),
            int!(tsval),
        ),
        TcpTsecrDiff: column(
            Spec::new(
                "tcp_tsecr_diff",
                Int32,
                Delta,
                "TSecr of the timestamp option, minus the expected one; NULL: 0",
            )
            .or_null()
            .of_run()
            .of_headers(),
            |f, c| f.diffs(c, has::TSECR, |of, at| of.run.tsecr[at.row()]),
            int!(tsecr),
        ),
        TcpOptions: column(
            Spec::new(
                "tcp_options",
                Bytes,
                Codes,
                "with zeros in place of the timestamps",
            )
            .or_null()
            .of_headers(),
            |f, c| {
                f.coded(c, &f.run().options.entries, |of, at| {
                    if at.is_tcp() {
                        of.run.options_code[at.row()]
                    } else {
                        NULL
                    }
                });
            },
            bytes!(tcp_options),
        ),
        Checksum: column(
            Spec::new(
                "checksum",
                Int32,
                Delta,
                "TCP or UDP; NULL: correct for the kept bytes",
            )
            .or_null()
            .of_headers(),
            |f, c| f.diffs(c, has::CHECKSUM, |of, at| of.run.checksum[at.row()].into()),
            some!(checksum),
        )
        .only_if(has::CHECKSUM),
        LinkHeader: column(
            Spec::new(
                "link_header",
                Bytes,
                Codes,
                "everything before the innermost IP header",
            )
            .or_null()
            .of_headers(),
            |f, c| {
                f.coded(c, &f.run().links.entries, |of, at| {
                    if at.is_raw() {
                        NULL
                    } else {
                        of.run.link_code[at.row()]
                    }
                });
            },
            bytes!(link_header),
        ),
        TransportHeader: column(
            Spec::new(
                "transport_header",
                Bytes,
                Dictionary,
                "if it is neither TCP nor UDP, or not whole",
            )
            .or_null()
            .of_headers(),
            |f, c| f.extra(c, |extra| extra.transport.clone()),
            bytes!(transport_header),
        )
        .only_if(has::EXTRA_TRANSPORT),
        Header: column(
            Spec::new(
                "header",
                Bytes,
                Dictionary,
                "the whole header, if the other columns cannot restore it",
            )
            .or_null()
            .of_headers(),
            |f, c| f.extra(c, |extra| extra.header.clone()),
            bytes!(header),
        )
        .only_if(has::RAW),
        HeaderLayout: column(
            Spec::new(
                "header_layout",
                Int32,
                Codes,
                "0: `header`; 4 or 6 for the IP version, plus 16 for TCP or 32 for UDP",
            )
            .of_headers(),
            |f, c| f.ints(c, |_, at| Some(at.layout().into())),
            int!(layout),
        ),
        HasTime: column(
            Spec::new("has_time", Bool, Plain, "whether the capture has a time for the packet"),
            |f, c| {
                let any_without = f.run().any_has & has::NO_TIME != 0;
                f.bools(c, any_without, |_, at| at.has(has::TIME));
            },
            Read::Int(|row, value| {
                row.has_time = value != 0;
                Ok(())
            }),
        ),
        PacketOptions: column(
            Spec::new(
                "packet_options",
                Bytes,
                Dictionary,
                "of a pcapng input, little-endian; comments with processes (`--processes`)",
            )
            .or_null(),
            |f, c| f.extra(c, |extra| extra.packet_options.clone()),
            bytes!(packet_options),
        )
        .only_if(has::EXTRA_PACKET_OPTIONS),
        PayloadOffset: column(
            Spec::new(
                "payload_offset",
                Int64,
                Delta,
                "position of the packet in the payload file; see below",
            )
            .or_null(),
            |f, c| f.int64_or_null(c, |of, at| of.payload_at(at)),
            Read::Int(|row, value| {
                row.payload_offset = Some(value.cast_unsigned());
                Ok(())
            }),
        )
        .only_with_payload(),
    }
}

/// Fills one column with the rows of a run.
pub(crate) fn fill(index: usize, filler: &mut Filler<'_>, column: &mut Column) {
    let declared = PacketColumn::ALL[index].declared();
    if declared.is_in(filler.run()) {
        (declared.fill)(filler, column);
    } else {
        filler.nulls(column);
    }
}

impl PacketColumn {
    /// How a value of this column is stored in a row.
    pub(crate) fn reads(self) -> Read {
        DECLARED[self.index()].read
    }
}
