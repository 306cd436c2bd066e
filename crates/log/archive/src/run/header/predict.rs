//! Predicts a flow's next header fields from earlier ones: the columns hold the differences, and
//! those are nearly always 0.
//!
//! A direction's prediction depends on the earlier packets of both directions, in order of arrival,
//! within one run. All arithmetic is modulo the field's width.

/// The state of one direction of a flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Direction {
    tcp_seen: bool,
    /// The sequence number after the last segment.
    next: u32,
    /// The largest of these.
    end: u32,
    acknowledgement: u32,
    /// The last errors of the two rules for acknowledgements.
    misses: [u32; 2],
    identification: u16,
    /// The identification's increment: 0 or 1.
    step: u16,
    timestamps: Option<Timestamps>,
}

#[derive(Clone, Copy, Debug)]
struct Timestamps {
    value: u32,
    echo: u32,
    time_ns: u64,
}

/// The predicted numbers of a TCP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpNumbers {
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: u32,
    /// Value and echo of the timestamp option, where there is one.
    pub(crate) timestamps: (u32, u32),
}

/// A prediction, with what is needed to learn from the actual values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prediction {
    pub(crate) numbers: TcpNumbers,
    candidates: [u32; 2],
}

/// `actual - predicted` as a signed number.
#[allow(clippy::cast_possible_wrap)]
pub(crate) fn difference(actual: u32, predicted: u32) -> i32 {
    actual.wrapping_sub(predicted) as i32
}

/// The actual value, recovered.
#[allow(clippy::cast_sign_loss)]
pub(crate) fn sum(predicted: u32, difference: i32) -> u32 {
    predicted.wrapping_add(difference as u32)
}

impl Direction {
    /// The predicted identification.
    pub(crate) fn identification(&self) -> u16 {
        self.identification.wrapping_add(self.step)
    }

    /// Learns the actual identification.
    pub(crate) fn learn_identification(&mut self, actual: u16) {
        self.step = u16::from(actual != self.identification);
        self.identification = actual;
    }

    /// The prediction for the next segment in this direction, given the opposite one.
    pub(crate) fn tcp(&self, opposite: &Self, time_ns: u64) -> Prediction {
        // What the other side has sent, or what was acknowledged last.
        let candidates = [
            if opposite.tcp_seen {
                opposite.end
            } else {
                self.acknowledgement
            },
            self.acknowledgement,
        ];
        let better = usize::from(self.misses[1] < self.misses[0]);
        let value = self.timestamps.map_or(0, |last| {
            // Most stacks count milliseconds.
            let elapsed = time_ns.saturating_sub(last.time_ns) / 1_000_000;
            match u32::try_from(elapsed) {
                Ok(elapsed) => last.value.wrapping_add(elapsed),
                // Part of the format: no prediction after 49 days of silence.
                Err(_) => last.value,
            }
        });
        let echo = match (opposite.timestamps, self.timestamps) {
            (Some(opposite), _) => opposite.value,
            (None, Some(own)) => own.echo,
            (None, None) => 0,
        };
        Prediction {
            numbers: TcpNumbers {
                sequence: self.next,
                acknowledgement: candidates[better],
                timestamps: (value, echo),
            },
            candidates,
        }
    }

    /// Learns the actual numbers of a segment that takes `space` of the sequence space.
    pub(crate) fn learn_tcp(
        &mut self,
        prediction: &Prediction,
        actual: &TcpNumbers,
        has_timestamps: bool,
        space: u32,
        time_ns: u64,
    ) {
        self.next = actual.sequence.wrapping_add(space);
        if !self.tcp_seen || difference(self.next, self.end) > 0 {
            self.end = self.next;
        }
        self.tcp_seen = true;
        for (miss, candidate) in self.misses.iter_mut().zip(prediction.candidates) {
            *miss = difference(actual.acknowledgement, candidate).unsigned_abs();
        }
        self.acknowledgement = actual.acknowledgement;
        if has_timestamps {
            let (value, echo) = actual.timestamps;
            self.timestamps = Some(Timestamps {
                value,
                echo,
                time_ns,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Reader and writer compute the same predictions, so differences can be undone.
        #[test]
        fn differences_lead_back(
            segments in prop::collection::vec(
                (any::<bool>(), any::<u32>(), any::<u32>(), any::<(u32, u32)>(), any::<bool>(),
                 0_u32..3_000, any::<u16>(), any::<u64>()), 0..40),
        ) {
            let mut writer = [Direction::default(), Direction::default()];
            let mut reader = writer.clone();
            for (forward, sequence, acknowledgement, timestamps, has, space, id, time) in segments {
                let at = usize::from(forward);
                let actual = TcpNumbers { sequence, acknowledgement, timestamps };
                let ahead = writer[at].tcp(&writer[1 - at], time);
                let step = id.wrapping_sub(writer[at].identification());
                writer[at].learn_tcp(&ahead, &actual, has, space, time);
                writer[at].learn_identification(id);

                let again = reader[at].tcp(&reader[1 - at], time);
                let back = TcpNumbers {
                    sequence: sum(again.numbers.sequence, difference(sequence, ahead.numbers.sequence)),
                    acknowledgement: sum(
                        again.numbers.acknowledgement,
                        difference(acknowledgement, ahead.numbers.acknowledgement),
                    ),
                    timestamps: (
                        sum(again.numbers.timestamps.0, difference(timestamps.0, ahead.numbers.timestamps.0)),
                        sum(again.numbers.timestamps.1, difference(timestamps.1, ahead.numbers.timestamps.1)),
                    ),
                };
                prop_assert_eq!(back, actual);
                let id_back = reader[at].identification().wrapping_add(step);
                prop_assert_eq!(id_back, id);
                reader[at].learn_tcp(&again, &back, has, space, time);
                reader[at].learn_identification(id_back);
            }
        }
    }

    #[test]
    fn a_steady_connection_is_predicted() {
        let mut client = Direction::default();
        let mut server = Direction::default();
        let mut wrong = 0;
        for n in 0..100_u32 {
            let data = TcpNumbers {
                sequence: 5_000_u32.wrapping_add(n * 1_448),
                acknowledgement: 900,
                timestamps: (n, n.saturating_sub(1)),
            };
            let ahead = server.tcp(&client, u64::from(n) * 1_000_000);
            wrong += u32::from(ahead.numbers != data);
            server.learn_tcp(&ahead, &data, true, 1_448, u64::from(n) * 1_000_000);
            let ack = TcpNumbers {
                sequence: 900,
                acknowledgement: 5_000 + (n + 1) * 1_448,
                timestamps: (n, n),
            };
            let ahead = client.tcp(&server, u64::from(n) * 1_000_000);
            wrong += u32::from(ahead.numbers.acknowledgement != ack.acknowledgement);
            client.learn_tcp(&ahead, &ack, true, 0, u64::from(n) * 1_000_000);
        }
        assert!(wrong <= 3, "{wrong} wrong predictions");
    }
}
