//! What the packets of a block refer to: verdicts, interfaces, the context; metadata of inputs.

use strata_wire::{FlowShare, Interface, Meta};

use super::{BlockBuilder, put};
use crate::context::may_protect;
use crate::format::{FLAG_META, FLAG_PROTECTED, PREFIX_LEN, Trees, VERDICT_DECIDED, kind};

impl BlockBuilder {
    /// Whether context, interface and verdict are all defined in this block.
    #[inline(always)]
    #[must_use]
    pub fn defines(&self, interface: u16, verdict: u16) -> bool {
        self.last_interface == Some(interface) && !self.needs_verdict(verdict)
    }

    /// Whether context and interface are defined in this block, and the previous packet used both.
    #[inline(always)]
    #[must_use]
    pub fn refers_to(&self, interface: u16) -> bool {
        self.last_interface == Some(interface)
    }

    /// Whether the verdict still has to be defined in this block.
    #[inline]
    #[must_use]
    pub fn needs_verdict(&self, id: u16) -> bool {
        self.verdicts_defined[usize::from(id)] == 0
    }

    /// Whether the interface still has to be defined in this block.
    #[inline]
    #[must_use]
    pub fn needs_interface(&self, id: u16) -> bool {
        self.interfaces_defined[usize::from(id) / 64] & 1 << (id % 64) == 0
    }

    /// Whether the context still has to be defined in this block.
    #[must_use]
    pub fn needs_context(&self) -> bool {
        !self.context_defined
    }

    /// Defines a verdict that the class decided.
    ///
    /// # Panics
    ///
    /// As [`BlockBuilder::define_decided`].
    pub fn define_verdict(&mut self, id: u16, class: u8, trees: Trees, score: u16, leaves: &[u16]) {
        self.define_decided(id, (class, trees, score), leaves, &[]);
    }

    /// Defines a verdict, as in [`VerdictRecord`](crate::VerdictRecord): class, trees and score,
    /// and the bytes of who decided ([`Decider::emit`](strata_wire::Decider::emit)), empty if the class
    /// did. Does not allocate.
    ///
    /// # Panics
    ///
    /// If there are more than 256 leaves, which no model has; or more than 65,535 bytes.
    pub fn define_decided(
        &mut self,
        id: u16,
        (class, trees, score): (u8, Trees, u16),
        leaves: &[u16],
        decider: &[u8],
    ) {
        assert!(leaves.len() <= 256, "no model has more trees");
        let [low, high] = score.to_le_bytes();
        let fixed = [class, trees.code(), low, high];
        let leaves_len = 2 * leaves.len();
        let rest = if decider.is_empty() {
            let len = fixed.len() + leaves_len;
            put(&[&fixed], self.new_record(kind::VERDICT, 0, id, len))
        } else {
            let len = u16::try_from(decider.len()).expect("texts of deciders are bounded");
            let parts = [&fixed, &len.to_le_bytes()[..], decider];
            let before: usize = parts.iter().map(|part| part.len()).sum();
            let len = before + leaves_len;
            let body = self.new_record(kind::VERDICT, VERDICT_DECIDED, id, len);
            put(&parts, body)
        };
        for (bytes, leaf) in rest.as_chunks_mut().0.iter_mut().zip(leaves) {
            *bytes = leaf.to_le_bytes();
        }
        if std::mem::replace(&mut self.verdicts_defined[usize::from(id)], 1) == 0 {
            self.verdicts.push(id);
        }
    }

    /// Defines an interface.
    pub fn define_interface(&mut self, id: u16, interface: &Interface) {
        let link = interface.link.0.to_le_bytes();
        let snaplen = interface.snaplen.to_le_bytes();
        let parts = [&link[..], &[0, 0], &snaplen, &interface.options];
        self.push_record(kind::INTERFACE, 0, id, &parts);
        self.interfaces_defined[usize::from(id) / 64] |= 1 << (id % 64);
    }

    /// Marks the context and this interface as defined, and as those of the following packets; see
    /// [`BlockBuilder::defines`].
    pub fn refer_to(&mut self, interface: u16) {
        debug_assert!(self.context_defined && !self.needs_interface(interface));
        self.last_interface = Some(interface);
    }

    /// Says that the following packets have another context, which has to be defined.
    pub fn forget_context(&mut self) {
        self.context_defined = false;
        self.last_interface = None;
    }

    /// Defines what the following packets were recorded with.
    pub fn define_context(&mut self, json: &[u8]) {
        self.push_record(kind::CONTEXT, 0, 0, &[json]);
        // Nearly every block has the context of the previous one.
        if self.context.0 != json {
            self.context = (json.to_vec(), may_protect(json));
        }
        if self.context.1 {
            self.header.flags |= FLAG_PROTECTED;
        }
        self.context_defined = true;
    }

    /// Defines the share of flows that the following packets belong to, unless it is already
    /// defined. Goes before the first of them.
    pub fn define_flow_share(&mut self, share: FlowShare) {
        if self.flow_share != Some(share) {
            self.push_record(kind::FLOW_SHARE, 0, 0, &[&share.0.to_le_bytes()]);
            self.flow_share = Some(share);
        }
    }

    /// Has definitions checked before the next packet.
    pub fn look_again(&mut self) {
        self.last_interface = None;
    }

    /// Appends metadata of an input.
    pub fn push_meta(&mut self, meta: &Meta) {
        match meta {
            Meta::Interface { id, interface } => self.define_interface(*id, interface),
            Meta::Section { options } => self.push_record(kind::SECTION, 0, 0, &[options]),
            Meta::Block {
                block_type,
                interface,
                body,
            } => {
                let (flags, reference) = match interface {
                    Some(interface) => (1, *interface),
                    None => (0, 0),
                };
                let parts = [&block_type.to_le_bytes()[..], body];
                self.push_record(kind::PCAPNG_BLOCK, flags, reference, &parts);
            }
        }
        self.header.flags |= FLAG_META;
    }

    /// Bytes that [`BlockBuilder::push_meta`] will take.
    #[must_use]
    pub fn meta_len(meta: &Meta) -> usize {
        PREFIX_LEN
            + match meta {
                Meta::Interface { interface, .. } => 8 + interface.options.len(),
                Meta::Section { options } => options.len(),
                Meta::Block { body, .. } => 4 + body.len(),
            }
    }
}
