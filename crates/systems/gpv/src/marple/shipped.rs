//! Queries by name: those of Table 4 of the paper, as Marple's authors publish them, and others of
//! their examples that vectors can answer.

/// A query that comes with Strata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shipped {
    /// Its name.
    pub name: &'static str,
    /// What it answers.
    pub about: &'static str,
    /// Its text.
    pub text: &'static str,
    /// Its parameters with their usual values.
    pub parameters: &'static [(&'static str, &'static str)],
}

/// The query of this name.
#[must_use]
pub fn shipped(name: &str) -> Option<&'static Shipped> {
    SHIPPED.iter().find(|query| query.name == name)
}

impl Shipped {
    /// The parameters, those in `set` in place of the usual ones.
    ///
    /// # Errors
    ///
    /// If one is not a parameter of the query.
    pub fn with<'a>(
        &self,
        set: &[(&str, &'a str)],
    ) -> Result<Vec<(&'static str, &'a str)>, String> {
        if let Some((name, _)) = set
            .iter()
            .find(|(name, _)| !self.parameters.iter().any(|(known, _)| known == name))
        {
            let names: Vec<&str> = self.parameters.iter().map(|(name, _)| *name).collect();
            let names = if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            };
            return Err(format!(
                "{}: no parameter {name}; it has {names}",
                self.name
            ));
        }
        let values = self.parameters.iter().map(|&(name, usual)| {
            let value = set.iter().find(|(given, _)| *given == name);
            (name, value.map_or(usual, |(_, value)| value))
        });
        Ok(values.collect())
    }
}

/// All of them; the six of Table 4 first.
pub const SHIPPED: &[Shipped] = &[
    Shipped {
        name: "concurrent-connections",
        about: "flows that sent packets in each window of time",
        parameters: &[("window", "128ms")],
        text: "\
def new_flow([seen], []):
    if seen == 0 { seen = 1; emit(); }

def flow_count([connections], []):
    connections = connections + 1

R1 = map(T, [epoch], [tin/$window]);
R2 = groupby(R1, [srcip, dstip, srcport, dstport, proto, epoch], new_flow);
R3 = groupby(R2, [epoch], flow_count);
",
    },
    Shipped {
        name: "ewma-latencies",
        about: "moving average of the time that a flow's packets wait in the queue: the depth of \
                the queue when they arrive, times the time to send one unit of it",
        parameters: &[("alpha", "0.2"), ("unit", "1ns")],
        text: "\
def ewma([avg], [qsize]):
    avg = (1 - $alpha) * avg + $alpha * (qsize * $unit)

result = groupby(T, [srcip, dstip, srcport, dstport, proto, switch], ewma);
",
    },
    Shipped {
        name: "flowlet-size-histogram",
        about: "number of flowlets by their size in packets; a pause longer than gap ends a \
                flowlet; as in the published query, the first packet of a flow ends one of size 0",
        parameters: &[("gap", "5ms"), ("bucket", "128")],
        text: "\
def fl_detect([last_time, size], [tin]):
    if tin - last_time > $gap { emit(); size = 1; }
    else { size = size + 1; }
    last_time = tin

def flcount([flowlets], []):
    flowlets = flowlets + 1

R1 = groupby(T, [srcip, dstip, srcport, dstport, proto, switch], fl_detect);
R2 = map(R1, [size_index], [size/$bucket]);
result = groupby(R2, [size_index], flcount);
",
    },
    Shipped {
        name: "packet-counts-per-source",
        about: "packets of each source address",
        parameters: &[],
        text: "\
def count([counter], []):
    counter = counter + 1

result = groupby(T, [srcip], count);
",
    },
    Shipped {
        name: "tcp-non-monotonic",
        about: "packets of each TCP flow whose sequence number is before an earlier one",
        parameters: &[],
        text: "\
def nonmt([maxseq, nm_count], [tcpseq]):
    if maxseq != 0 and before(tcpseq, maxseq) { nm_count = nm_count + 1; }
    if maxseq == 0 or before(maxseq, tcpseq) { maxseq = tcpseq; }

# A later fragment has no TCP header.
tcps = filter(T, proto == TCP and tcpflags > 0);
result = groupby(tcps, [srcip, dstip, srcport, dstport, proto, switch], nonmt);
",
    },
    Shipped {
        name: "tcp-out-of-sequence",
        about: "packets of each TCP flow that do not continue the previous packet; as in the \
                published query, the first packet and the one after a SYN count too",
        parameters: &[],
        text: "\
def oos_count([count, lastseq], [tcpseq, payload_len]):
    if before(lastseq, tcpseq) or before(tcpseq, lastseq) { count = count + 1; emit(); }
    lastseq = tcpseq + payload_len

# A later fragment has no TCP header.
tcps = filter(T, proto == TCP and tcpflags > 0);
result = groupby(tcps, [srcip, dstip, srcport, dstport, proto, switch], oos_count);
",
    },
    Shipped {
        name: "tcp-retransmissions",
        about: "packets of each TCP flow whose payload begins before the end of the data sent so \
                far, without keep-alives",
        parameters: &[],
        text: "\
def again([count, next, seen], [tcpseq, payload_len, tcpflags]):
    # A SYN begins another connection.
    if tcpflags / 2 - tcpflags / 4 * 2 == 1 { seen = 0; }
    # A FIN takes a sequence number, after the payload.
    fin = tcpflags - tcpflags / 2 * 2
    end = tcpseq + payload_len + fin
    # A keep-alive repeats the last byte, and has no FIN.
    if seen == 1 and payload_len > 0 and before(tcpseq, next)
        and (payload_len > 1 or fin == 1 or before(end, next) or before(next, end)) { count = count + 1; }
    if seen == 0 or before(next, end) { next = end; }
    seen = 1

# A later fragment has no TCP header.
tcps = filter(T, proto == TCP and tcpflags > 0);
result = groupby(tcps, [srcip, dstip, srcport, dstport, proto, switch], again);
",
    },
    Shipped {
        name: "tcp-rtt",
        about: "round-trip time of each TCP flow, ns: the shortest time from a SYN to the packet that \
                completes the handshake, both from the same end",
        parameters: &[],
        text: "\
def handshake([begun, rtt], [tin, tcpflags]):
    syn = tcpflags / 2 - tcpflags / 4 * 2
    ack = tcpflags / 16 - tcpflags / 32 * 2
    rst = tcpflags / 4 - tcpflags / 8 * 2
    # Of a SYN that was sent again, the last one counts.
    if syn == 1 and ack == 0 { begun = tin; }
    if syn == 0 and begun != 0 {
        if ack == 1 and rst == 0 { rtt = tin - begun; emit(); }
        begun = 0;
    }

def shortest([handshakes, rtt_min], [rtt]):
    handshakes = handshakes + 1
    if handshakes == 1 or rtt < rtt_min { rtt_min = rtt; }

# A later fragment has no TCP header.
tcps = filter(T, proto == TCP and tcpflags > 0);
R1 = groupby(tcps, [srcip, dstip, srcport, dstport, proto, switch], handshake);
result = groupby(R1, [srcip, dstip, srcport, dstport, proto, switch], shortest);
",
    },
    Shipped {
        name: "byte-counts-per-flow",
        about: "bytes on the wire of each flow",
        parameters: &[],
        text: "\
def count([bytes], [pkt_len]):
    bytes = bytes + pkt_len

result = groupby(T, [srcip, dstip, srcport, dstport, proto], count);
",
    },
    Shipped {
        name: "payload-length-averages",
        about: "moving average of the payload length of each flow's packets",
        parameters: &[("alpha", "0.25")],
        text: "\
def ewma([avg], [payload_len]):
    avg = $alpha * avg + (1 - $alpha) * payload_len

result = groupby(T, [srcip, dstip, srcport, dstport, proto, switch], ewma);
",
    },
    Shipped {
        name: "tcp-timeouts",
        about: "pauses of each TCP flow that are as long as a retransmission timeout",
        parameters: &[("low", "200ms"), ("high", "320ms")],
        text: "\
def timeout([count, last_time], [tin]):
    pause = tin - last_time
    if pause > $low and pause < $high { count = count + 1; }
    last_time = tin

tcps = filter(T, proto == TCP);
result = groupby(tcps, [srcip, dstip, srcport, dstport, proto, switch], timeout);
",
    },
];
