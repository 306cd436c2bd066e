//! The table `flows`: one row per flow and run, which also tells where its packets are.

pub(crate) mod metering;

mod row;

use parquet::data_type::ByteArray;
use serde_json::Value;
use strata_tables::{Coding, Column, Element, ElementForm, Kind, Narrows, Spec, Unit, Values};

pub(crate) use row::{FlowRow, Place, flow_rows};
use row::{float, whole};

use crate::run::flow::{community_id, score};

use Coding::{Delta, Dictionary, Plain};
use Get::{Bool, Float, FloatOrNull, Int, IntOrNull, Text, TextOrNull};
use Kind::{Int32, Int64, Time};

/// A column of `flows`: its spec, and how it is computed.
#[derive(Clone, Copy)]
struct FlowSpec {
    spec: Spec,
    get: Get,
}

/// How a column's value is computed from a flow.
#[derive(Clone, Copy)]
enum Get {
    Int(fn(&FlowRow<'_>) -> i64),
    IntOrNull(fn(&FlowRow<'_>) -> Option<i64>),
    Float(fn(&FlowRow<'_>) -> f32),
    FloatOrNull(fn(&FlowRow<'_>) -> Option<f32>),
    Text(fn(&FlowRow<'_>) -> ByteArray),
    TextOrNull(fn(&FlowRow<'_>) -> Option<ByteArray>),
    Bool(fn(&FlowRow<'_>) -> bool),
}

const fn column(spec: Spec, get: Get) -> FlowSpec {
    let agrees = match get {
        Int(_) | IntOrNull(_) => matches!(spec.kind, Int32 | Int64 | Time),
        Float(_) | FloatOrNull(_) => matches!(spec.kind, Kind::Float),
        Text(_) | TextOrNull(_) => matches!(spec.kind, Kind::Text),
        Bool(_) => matches!(spec.kind, Kind::Bool),
    };
    assert!(agrees, "a column is made of values of its kind");
    let spec = match get {
        IntOrNull(_) | FloatOrNull(_) | TextOrNull(_) => spec.or_null(),
        Int(_) | Float(_) | Text(_) | Bool(_) => spec,
    };
    FlowSpec { spec, get }
}

const SOURCE: Element = Element::by_version(
    [8, 27],
    ["sourceIPv4Address", "sourceIPv6Address"],
    ElementForm::Address,
)
.of_mac(56, "sourceMacAddress");
const DESTINATION: Element = Element::by_version(
    [12, 28],
    ["destinationIPv4Address", "destinationIPv6Address"],
    ElementForm::Address,
)
.of_mac(80, "destinationMacAddress");

const fn icmp(form: ElementForm) -> Element {
    let names = ["icmpTypeCodeIPv4", "icmpTypeCodeIPv6"];
    Element::by_version([32, 139], names, form).in_netflow9(32, 2)
}

strata_tables::columns! {
    /// The columns of `flows`.
    enum FlowColumn of FlowSpec {
        FlowId: column(
            Spec::new(
                "flow_id",
                Int64,
                Delta,
                "(part << 32) + number; `packets` refers to it",
            )
            .internal(),
            Int(|row| row.flow_id),
        ),
        FirstTime: column(
            Spec::new("first_time", Time, Delta, "arrival of the first packet")
                .element(Element::milliseconds(152, "flowStartMilliseconds", 22)),
            Int(|row| row.stats().first_ns.cast_signed()),
        ),
        LastTime: column(
            Spec::new("last_time", Time, Delta, "arrival of the last packet")
                .element(Element::milliseconds(153, "flowEndMilliseconds", 21)),
            Int(|row| row.stats().last_ns.cast_signed()),
        ),
        Recording: column(
            Spec::new("recording", Int32, Dictionary, "number in `manifest.json`"),
            Int(|row| row.recording.into()),
        ),
        Interface: column(
            Spec::new("interface", Int32, Dictionary, "number in `meta`")
                .element(Element::unsigned(10, "ingressInterface", 4)),
            Int(|row| row.flow.interface.into()),
        ),
        Src: column(
            Spec::new(
                "src",
                Kind::Text,
                Dictionary,
                "sender of the run's first packet",
            )
            .element(SOURCE)
            .narrows(Narrows::Address),
            TextOrNull(|row| row.address(row.there())),
        ),
        Dst: column(
            Spec::new("dst", Kind::Text, Dictionary, "receiver of the run's first packet").element(DESTINATION).narrows(Narrows::Address),
            TextOrNull(|row| row.address(row.back())),
        ),
        SrcPort: column(
            Spec::new("src_port", Int32, Dictionary, "NULL where there is none")
                .element(Element::unsigned(7, "sourceTransportPort", 2)),
            IntOrNull(|row| row.port(row.there())),
        ),
        DstPort: column(
            Spec::new("dst_port", Int32, Dictionary, "NULL where there is none")
                .element(Element::unsigned(11, "destinationTransportPort", 2)),
            IntOrNull(|row| row.port(row.back())),
        ),
        Protocol: column(
            Spec::new(
                "protocol",
                Int32,
                Dictionary,
                "of IP; NULL where there is none",
            )
            .element(Element::unsigned(4, "protocolIdentifier", 1)),
            IntOrNull(|row| row.protocol()),
        ),
        EtherType: column(
            Spec::new(
                "ether_type",
                Int32,
                Dictionary,
                "of packets that are not IP; NULL for IP, and if the frame has a length instead; files of earlier versions lack it",
            )
            .element(Element::unsigned(256, "ethernetType", 2)),
            IntOrNull(|row| row.flow.ether_type().map(i64::from)),
        ),
        IcmpType: column(
            Spec::new(
                "icmp_type",
                Int32,
                Dictionary,
                "of the run's first packet, if ICMP; files of earlier versions lack it",
            )
            .of_headers()
            .element(icmp(ElementForm::FirstByte)),
            IntOrNull(|row| row.flow.icmp.map(|[kind, _]| kind.into())),
        ),
        IcmpCode: column(
            Spec::new("icmp_code", Int32, Dictionary, "as `icmp_type`")
                .of_headers()
                .element(icmp(ElementForm::SecondByte)),
            IntOrNull(|row| row.flow.icmp.map(|[_, code]| code.into())),
        ),
        CommunityId: column(
            Spec::new(
                "community_id",
                Kind::Text,
                Plain,
                "version 1, seed 0: joins rows of one flow; NULL if not IP",
            )
            .of_headers()
            .filtered(),
            TextOrNull(|row| community_id(row.flow).map(|id| ByteArray::from(id.as_str()))),
        ),
        Packets: column(
            Spec::new("packets", Int64, Delta, "from `src` to `dst`")
                .unit(Unit::Packets)
                .element(Element::unsigned(2, "packetDeltaCount", 8)),
            Int(|row| row.stats().packets[row.there()].cast_signed()),
        ),
        ReversePackets: column(
            Spec::new("reverse_packets", Int64, Delta, "from `dst` to `src`")
                .unit(Unit::Packets)
                .element(Element::unsigned(2, "packetDeltaCount", 8)),
            Int(|row| row.stats().packets[row.back()].cast_signed()),
        ),
        WireBytes: column(
            Spec::new(
                "wire_bytes",
                Int64,
                Delta,
                "of the whole frames, from `src`",
            )
            .unit(Unit::Bytes)
            .element(Element::unsigned(352, "layer2OctetDeltaCount", 8)),
            Int(|row| row.stats().wire_bytes[row.there()].cast_signed()),
        ),
        ReverseWireBytes: column(
            Spec::new(
                "reverse_wire_bytes",
                Int64,
                Delta,
                "of the whole frames, from `dst`",
            )
            .unit(Unit::Bytes)
            .element(Element::unsigned(352, "layer2OctetDeltaCount", 8)),
            Int(|row| row.stats().wire_bytes[row.back()].cast_signed()),
        ),
        IpBytes: column(
            Spec::new(
                "ip_bytes",
                Int64,
                Delta,
                "of the IP packets from `src`, header and payload, by their length fields; in a tunnel those of the inner packets; NULL if not IP; files of earlier versions lack it",
            )
            .unit(Unit::Bytes)
            .element(Element::unsigned(1, "octetDeltaCount", 8)),
            IntOrNull(|row| row.ip_bytes(row.there())),
        ),
        ReverseIpBytes: column(
            Spec::new("reverse_ip_bytes", Int64, Delta, "as `ip_bytes`, from `dst`")
                .unit(Unit::Bytes)
                .element(Element::unsigned(1, "octetDeltaCount", 8)),
            IntOrNull(|row| row.ip_bytes(row.back())),
        ),
        LoggedBytes: column(
            Spec::new(
                "logged_bytes",
                Int64,
                Delta,
                "kept bytes of both directions",
            )
            .unit(Unit::Bytes),
            Int(|row| row.stats().logged_bytes.cast_signed()),
        ),
        TcpFlags: column(
            Spec::new(
                "tcp_flags",
                Int32,
                Dictionary,
                "all flags of packets from `src`; NULL if not TCP",
            )
            .element(Element::unsigned(6, "tcpControlBits", 2).in_netflow9(6, 1)),
            IntOrNull(|row| row.tcp_flags(row.there())),
        ),
        ReverseTcpFlags: column(
            Spec::new(
                "reverse_tcp_flags",
                Int32,
                Dictionary,
                "all flags of packets from `dst`; NULL if not TCP",
            )
            .element(Element::unsigned(6, "tcpControlBits", 2).in_netflow9(6, 1)),
            IntOrNull(|row| row.tcp_flags(row.back())),
        ),
        EndReason: column(
            Spec::new(
                "end_reason",
                Int32,
                Dictionary,
                "1: no packet for the idle timeout, 2: lasted for the active timeout, 3: FIN of both sides or RST, 4: end of the exported packets, 5: too many flows at once; the log's own table has 3 or NULL; files of earlier versions lack it",
            )
            .element(Element::unsigned(136, "flowEndReason", 1)),
            IntOrNull(|row| row.end_reason().map(|reason| i64::from(reason as u8))),
        ),
        Class: column(
            Spec::new("class", Kind::Text, Dictionary, "class of most of the flow's packets"),
            Text(|row| row.class.clone()),
        ),
        Classes: column(
            Spec::new(
                "classes",
                Kind::Text,
                Dictionary,
                "packets by class, as JSON",
            )
            .json(),
            Text(|row| row.classes.clone()),
        ),
        ScoreMax: column(
            Spec::new(
                "score_max",
                Kind::Float,
                Dictionary,
                "highest score of the flow's packets, 0 to 1; NULL if not dissected",
            ),
            FloatOrNull(|row| row.stats().score_max.map(score)),
        ),
        SizeMin: column(
            Spec::new(
                "size_min",
                Int64,
                Dictionary,
                "the smallest packet, of both directions",
            )
            .unit(Unit::Bytes),
            Int(|row| row.stats().size_min.into()),
        ),
        SizeMax: column(
            Spec::new("size_max", Int64, Dictionary, "the largest packet").unit(Unit::Bytes),
            Int(|row| row.stats().size_max.into()),
        ),
        SizeAvg: column(
            Spec::new("size_avg", Kind::Float, Plain, "mean size of the packets").unit(Unit::Bytes),
            Float(|row| float(row.stats().size_mean())),
        ),
        SizeVar: column(
            Spec::new("size_var", Kind::Float, Plain, "variance of the sizes of the packets").unit(Unit::BytesSquared),
            Float(|row| float(row.stats().size_variance())),
        ),
        IpdMinNs: column(
            Spec::new(
                "ipd_min_ns",
                Int64,
                Delta,
                "the shortest delay between packets; NULL if there is only one packet",
            )
            .unit(Unit::Nanoseconds),
            IntOrNull(|row| row.delay(|[min, _, _]| min)),
        ),
        IpdMaxNs: column(
            Spec::new("ipd_max_ns", Int64, Delta, "the longest delay").unit(Unit::Nanoseconds),
            IntOrNull(|row| row.delay(|[_, max, _]| max)),
        ),
        IpdAvgNs: column(
            Spec::new("ipd_avg_ns", Int64, Delta, "mean of the delays").unit(Unit::Nanoseconds),
            IntOrNull(|row| row.delay(|[_, _, mean]| mean)),
        ),
        DnsName: column(
            Spec::new(
                "dns_name",
                Kind::Text,
                Dictionary,
                "name of the first DNS question in kept payload",
            ),
            TextOrNull(|row| row.name(|names| &names.dns)),
        ),
        DnsQueryType: column(
            Spec::new(
                "dns_query_type",
                Int32,
                Dictionary,
                "type of that question, as in 28 for AAAA; files of earlier versions lack it",
            ),
            IntOrNull(|row| row.detail(|details| details.dns_query_type.map(i64::from))),
        ),
        DnsResponseCode: column(
            Spec::new(
                "dns_response_code",
                Int32,
                Dictionary,
                "of the first DNS response, 0 to 15, as in 3 for NXDOMAIN; files of earlier versions lack it",
            ),
            IntOrNull(|row| row.detail(|details| details.dns_response_code.map(i64::from))),
        ),
        DnsAnswers: column(
            Spec::new(
                "dns_answers",
                Kind::Text,
                Dictionary,
                "addresses in the answers of the first DNS response (in its kept part), as a JSON list, 16 at most; files of earlier versions lack it",
            )
            .json(),
            TextOrNull(|row| row.detail_text(|details| &details.dns_answers)),
        ),
        TlsServerName: column(
            Spec::new(
                "tls_server_name",
                Kind::Text,
                Dictionary,
                "first server name in kept payload, of TLS, DTLS or QUIC",
            ),
            TextOrNull(|row| row.name(|names| &names.server)),
        ),
        TlsCertificateNames: column(
            Spec::new(
                "tls_certificate_names",
                Kind::Text,
                Dictionary,
                "names in the certificate of the server, as a JSON list: the common names of its subject, then DNS names, 16 at most; only for TLS over TCP up to TLS 1.2 (later versions encrypt the certificate), and if the certificate was kept whole and its packets came in order; files of earlier versions lack it",
            )
            .json(),
            TextOrNull(|row| row.name(|names| &names.certificate)),
        ),
        TlsJa3: column(
            Spec::new(
                "tls_ja3",
                Kind::Text,
                Dictionary,
                "fingerprint of the client by JA3, if its client hello was kept whole",
            ),
            TextOrNull(|row| row.name(|names| &names.ja3)),
        ),
        TlsJa4: column(
            Spec::new("tls_ja4", Kind::Text, Dictionary, "as `tls_ja3`, by JA4"),
            TextOrNull(|row| row.name(|names| &names.ja4)),
        ),
        TlsVersion: column(
            Spec::new(
                "tls_version",
                Kind::Text,
                Dictionary,
                "version that the server of TLS or DTLS chose, such as `TLS 1.3`; files of earlier versions lack it",
            )
            .field_id(61),
            TextOrNull(|row| row.flow.names.chosen.map(|chosen| ByteArray::from(chosen.version_text().as_str()))),
        ),
        TlsCipher: column(
            Spec::new(
                "tls_cipher",
                Int32,
                Dictionary,
                "cipher suite that the server chose, as in 4865 for TLS_AES_128_GCM_SHA256 (IANA, TLS Cipher Suites); files of earlier versions lack it",
            )
            .field_id(62),
            IntOrNull(|row| row.flow.names.chosen.map(|chosen| chosen.cipher.into())),
        ),
        QuicVersion: column(
            Spec::new(
                "quic_version",
                Kind::Text,
                Dictionary,
                "version of QUIC of the first Initial packet of the client, as in `0x00000001`; files of earlier versions lack it",
            )
            .field_id(63),
            TextOrNull(|row| row.flow.names.quic.map(|version| ByteArray::from(format!("{version:#010x}").as_str()))),
        ),
        HttpHost: column(
            Spec::new("http_host", Kind::Text, Dictionary, "first host of an HTTP/1 request in kept payload"),
            TextOrNull(|row| row.name(|names| &names.http)),
        ),
        HttpMethod: column(
            Spec::new(
                "http_method",
                Kind::Text,
                Dictionary,
                "of the first request of HTTP/1 that was kept; files of earlier versions lack it",
            ),
            TextOrNull(|row| row.detail_text(|details| &details.http_method)),
        ),
        HttpUri: column(
            Spec::new(
                "http_uri",
                Kind::Text,
                Dictionary,
                "target of that request, 1,024 characters at most; files of earlier versions lack it",
            ),
            TextOrNull(|row| row.detail_text(|details| &details.http_uri)),
        ),
        HttpUserAgent: column(
            Spec::new(
                "http_user_agent",
                Kind::Text,
                Dictionary,
                "`User-Agent` of that request, if the request's first packet has it, 512 characters at most; files of earlier versions lack it",
            ),
            TextOrNull(|row| row.detail_text(|details| &details.http_user_agent)),
        ),
        HttpStatus: column(
            Spec::new(
                "http_status",
                Int32,
                Dictionary,
                "of the first response of HTTP/1; files of earlier versions lack it",
            ),
            IntOrNull(|row| row.detail(|details| details.http_status.map(i64::from))),
        ),
        SshVersion: column(
            Spec::new(
                "ssh_version",
                Kind::Text,
                Dictionary,
                "version line of SSH that `src` sent; files of earlier versions lack it",
            ),
            TextOrNull(|row| row.detail_text(|details| &details.ssh_version[row.there()])),
        ),
        ReverseSshVersion: column(
            Spec::new(
                "reverse_ssh_version",
                Kind::Text,
                Dictionary,
                "as `ssh_version`, of `dst`",
            ),
            TextOrNull(|row| row.detail_text(|details| &details.ssh_version[row.back()])),
        ),
        ModbusFunctions: column(
            Spec::new(
                "modbus_functions",
                Kind::Text,
                Dictionary,
                "function codes of all Modbus messages in kept payload on TCP port 502, as a JSON list; files of earlier versions lack it",
            )
            .json(),
            TextOrNull(|row| row.detail(|details| Some(ByteArray::from(details.modbus_functions.list()?.as_str())))),
        ),
        SmbDialect: column(
            Spec::new(
                "smb_dialect",
                Kind::Text,
                Dictionary,
                "dialect of SMB 2 or 3 that the server chose last, such as `3.1.1`; files of earlier versions lack it",
            )
            .field_id(64),
            TextOrNull(|row| row.detail(|details| details.smb_dialect.map(|dialect| ByteArray::from(strata_names::dialect_text(dialect).as_str())))),
        ),
        SmbShares: column(
            Spec::new(
                "smb_shares",
                Kind::Text,
                Dictionary,
                "paths of shares that the client connected to by SMB 2 or 3, as a JSON list; the first 16, each cut to 255 characters, and at most 1,024 bytes together; files of earlier versions lack it",
            )
            .json()
            .field_id(65),
            TextOrNull(|row| row.detail(|details| details.smb_shares.list().map(|list| ByteArray::from(list.as_str())))),
        ),
        SrcProcess: column(
            Spec::new(
                "src_process",
                Kind::Text,
                Dictionary,
                "name of the process of `src`, if the recording knew it (`--processes`); files of earlier versions lack it",
            )
            .field_id(66),
            TextOrNull(|row| row.process(row.there(), |process| ByteArray::from(&*process.name))),
        ),
        SrcPid: column(
            Spec::new(
                "src_pid",
                Int64,
                Dictionary,
                "number of that process; files of earlier versions lack it",
            )
            .field_id(67),
            IntOrNull(|row| row.process(row.there(), |process| i64::from(process.pid))),
        ),
        SrcCgroup: column(
            Spec::new(
                "src_cgroup",
                Kind::Text,
                Dictionary,
                "path of that process's cgroup, which names its systemd unit or container; files of earlier versions lack it",
            )
            .field_id(68),
            TextOrNull(|row| row.process(row.there(), |process| ByteArray::from(format!("/{}", process.cgroup).as_str()))),
        ),
        DstProcess: column(
            Spec::new(
                "dst_process",
                Kind::Text,
                Dictionary,
                "name of the process of `dst`, if the recording knew it (`--processes`); files of earlier versions lack it",
            )
            .field_id(69),
            TextOrNull(|row| row.process(row.back(), |process| ByteArray::from(&*process.name))),
        ),
        DstPid: column(
            Spec::new(
                "dst_pid",
                Int64,
                Dictionary,
                "number of that process; files of earlier versions lack it",
            )
            .field_id(70),
            IntOrNull(|row| row.process(row.back(), |process| i64::from(process.pid))),
        ),
        DstCgroup: column(
            Spec::new(
                "dst_cgroup",
                Kind::Text,
                Dictionary,
                "path of that process's cgroup, which names its systemd unit or container; files of earlier versions lack it",
            )
            .field_id(71),
            TextOrNull(|row| row.process(row.back(), |process| ByteArray::from(format!("/{}", process.cgroup).as_str()))),
        ),
        HidesAddresses: column(
            Spec::new(
                "hides_addresses",
                Kind::Bool,
                Plain,
                "whether a packet of the flow may have addresses that the row lacks (of a tunnel, or in headers that were cut or not understood), or is a later fragment, which has no ports",
            )
            .internal(),
            Bool(|row| row.flow.hides_addresses),
        ),
        FlowShare: column(
            Spec::new(
                "flow_share",
                Kind::Float,
                Dictionary,
                "largest `flow_share` among the flow's packets (table `packets`)",
            ),
            Float(|row| float(row.stats().share_max.ratio())),
        ),
        RowGroup: column(
            Spec::new(
                "row_group",
                Int32,
                Dictionary,
                "number of the row group in `packets` of the same part that has the flow's packets",
            )
            .internal(),
            Int(|row| whole(row.group)),
        ),
        FirstRow: column(
            Spec::new("first_row", Int32, Delta, "the flow's first row in that row group").internal(),
            Int(|row| whole(row.first_row)),
        ),
        Rows: column(
            Spec::new("rows", Int32, Delta, "number of the flow's rows from `first_row` on").internal(),
            Int(|row| whole(row.rows)),
        ),
    }
}

impl FlowColumn {
    /// The column with the same meaning for the other direction: itself, if both share it.
    #[must_use]
    pub const fn reverse(self) -> Self {
        match self {
            Self::Src => Self::Dst,
            Self::Dst => Self::Src,
            Self::SrcPort => Self::DstPort,
            Self::DstPort => Self::SrcPort,
            Self::Packets => Self::ReversePackets,
            Self::ReversePackets => Self::Packets,
            Self::WireBytes => Self::ReverseWireBytes,
            Self::ReverseWireBytes => Self::WireBytes,
            Self::IpBytes => Self::ReverseIpBytes,
            Self::ReverseIpBytes => Self::IpBytes,
            Self::TcpFlags => Self::ReverseTcpFlags,
            Self::ReverseTcpFlags => Self::TcpFlags,
            Self::SshVersion => Self::ReverseSshVersion,
            Self::ReverseSshVersion => Self::SshVersion,
            Self::SrcProcess => Self::DstProcess,
            Self::DstProcess => Self::SrcProcess,
            Self::SrcPid => Self::DstPid,
            Self::DstPid => Self::SrcPid,
            Self::SrcCgroup => Self::DstCgroup,
            Self::DstCgroup => Self::SrcCgroup,
            same => same,
        }
    }
}

/// The values of a row as JSON, in the order of [`FlowColumn::ALL`].
pub(crate) fn values(row: &FlowRow<'_>) -> Vec<Value> {
    let text = |text: ByteArray| Value::from(String::from_utf8_lossy(text.data()));
    let declared = FlowColumn::ALL.iter().map(|column| column.declared().get);
    let values = declared.map(|get| match get {
        Int(get) => get(row).into(),
        IntOrNull(get) => get(row).into(),
        Float(get) => f64::from(get(row)).into(),
        FloatOrNull(get) => get(row).map(f64::from).into(),
        Text(get) => text(get(row)),
        TextOrNull(get) => get(row).map_or(Value::Null, text),
        Bool(get) => get(row).into(),
    });
    values.collect()
}

/// Fills one column of the table.
pub(crate) fn fill(index: usize, rows: &[FlowRow<'_>], column: &mut Column) {
    let declared = FlowColumn::ALL[index].declared();
    let Column { values, levels } = column;
    match (declared.get, values) {
        (Int(get), Values::Int64(out)) => out.extend(rows.iter().map(get)),
        (Int(get), Values::Int32(out)) => out.extend(rows.iter().map(|row| narrow(get(row)))),
        (IntOrNull(get), Values::Int64(out)) => or_null(rows, out, levels, get),
        (IntOrNull(get), Values::Int32(out)) => {
            or_null(rows, out, levels, |row| get(row).map(narrow));
        }
        (Float(get), Values::Float(out)) => out.extend(rows.iter().map(get)),
        (FloatOrNull(get), Values::Float(out)) => or_null(rows, out, levels, get),
        (Text(get), Values::Bytes(out)) => out.extend(rows.iter().map(get)),
        (TextOrNull(get), Values::Bytes(out)) => or_null(rows, out, levels, get),
        (Bool(get), Values::Bool(out)) => out.extend(rows.iter().map(get)),
        _ => unreachable!("{} is made of values of its kind", declared.spec.name),
    }
}

fn narrow(value: i64) -> i32 {
    i32::try_from(value).expect("a column of 32 bits has numbers of 32 bits")
}

fn or_null<T>(
    rows: &[FlowRow<'_>],
    out: &mut Vec<T>,
    levels: &mut Vec<i16>,
    get: impl Fn(&FlowRow<'_>) -> Option<T>,
) {
    for row in rows {
        let value = get(row);
        levels.push(i16::from(value.is_some()));
        out.extend(value);
    }
}
