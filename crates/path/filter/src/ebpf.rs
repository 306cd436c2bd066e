//! The same steps as eBPF, so that the kernel drops unwanted packets.
//!
//! The kernel takes a VLAN tag out of a packet before any filter sees it; we restore it before ours
//! runs. So a program has two parts, for packets with and without such a tag, and in the former,
//! loads see the packet as it will be.
//!
//! ```text
//! R6 the kernel's packet   R7 the packet's length as it will be
//! R8 a computed offset     R9 assembled bytes   R0 the loaded value
//! stack: the registers of the steps, 4 bytes each
//! ```

use strata_bpf::{Alu, Assembler, Condition, Label, Operand, Reg, Width};

use crate::ast::{Operator, Relation, Width as Load};
use crate::compile::layers::FIRST_FREE;
use crate::compile::layers::TAG_LEN;
use crate::compile::thread::targets;
use crate::program::{ACCEPT, NO_REGISTER, Place, Program, REGISTERS, Step};

/// The form in which the kernel has the packets that a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelView {
    /// A socket buffer, starting at the link-layer header.
    Packet,
    /// A socket buffer, starting at the network header; packets get a Linux cooked header, version
    /// 2, when they are captured.
    Cooked,
    /// A driver's buffer, starting at the link-layer header, with its VLAN tags.
    Xdp,
}

/// Why a filter has to be evaluated in user space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel cannot evaluate this filter: {reason}")]
pub struct NotInKernel {
    reason: &'static str,
}

/// `struct __sk_buff` in linux/bpf.h.
mod skb {
    pub(super) const LEN: i16 = 0;
    pub(super) const PACKET_TYPE: i16 = 4;
    pub(super) const PROTOCOL: i16 = 16;
    pub(super) const VLAN_PRESENT: i16 = 20;
    pub(super) const VLAN_TCI: i16 = 24;
    pub(super) const VLAN_PROTO: i16 = 28;
    pub(super) const IFINDEX: i16 = 40;
}

/// `struct xdp_md` in linux/bpf.h.
mod xdp {
    pub(super) const DATA: i16 = 0;
    pub(super) const DATA_END: i16 = 4;
}

/// `bpf_xdp_get_buff_len`, `bpf_xdp_load_bytes` (linux/bpf.h).
const GET_BUFF_LEN: i32 = 188;
const XDP_LOAD_BYTES: i32 = 189;

/// draft-ietf-opsawg-pcaplinktype, LINKTYPE_LINUX_SLL2.
const COOKED_LEN: u32 = 20;
/// Offset of a tag in Ethernet.
const TAG_AT: u32 = 12;
/// Where the steps' registers end on the stack, and scratch space after them.
const REGISTERS_AT: i16 = -(4 * 32);
const SCRATCH_AT: i16 = REGISTERS_AT - 8;

const _: () = assert!(REGISTERS == 32);

impl Program {
    /// Adds the filter to a program: it continues at `accept` or at `reject`. Expects the kernel's
    /// packet in `R6`, uses all registers and 136 bytes of stack, preserves `R6` and leaves the
    /// packet's length in `R7`.
    ///
    /// # Errors
    ///
    /// If the filter has tests that work only in user space: `protochain`, 802.11, and parts of a
    /// cooked header that the kernel does not have yet.
    pub fn write_ebpf(
        &self,
        asm: &mut Assembler,
        view: KernelView,
        accept: Label,
        reject: Label,
    ) -> Result<(), NotInKernel> {
        let tagged = asm.label();
        match view {
            KernelView::Xdp => {
                asm.set(Reg::R1, Reg::R6);
                asm.call(GET_BUFF_LEN);
                asm.set(Reg::R7, Reg::R0);
            }
            _ => asm.load(Width::Word, Reg::R7, Reg::R6, skb::LEN),
        }
        if view == KernelView::Cooked {
            asm.alu64(Alu::Add, Reg::R7, imm(COOKED_LEN));
        }
        for register in self.registers_used() {
            asm.store(Width::Word, Reg::R10, stack(register), -1);
        }
        if view != KernelView::Xdp {
            asm.load(Width::Word, Reg::R1, Reg::R6, skb::VLAN_PRESENT);
            asm.jump_if(Condition::NotEqual, Reg::R1, 0, tagged);
        }
        let mut part = Part {
            asm,
            view,
            tagged: false,
            accept,
            reject,
        };
        // In a driver's buffer, tags are still in the packet.
        let [bare, with_tag] = match self.by_tag.as_deref() {
            Some([bare, with_tag]) if view != KernelView::Xdp => [bare, with_tag],
            _ => [self, self],
        };
        part.program(bare)?;
        part.asm.bind(tagged);
        if view != KernelView::Xdp {
            part.asm.alu64(Alu::Add, Reg::R7, imm(TAG_LEN));
            part.tagged = true;
            part.program(with_tag)?;
        }
        Ok(())
    }

    /// Registers that some step reads or writes.
    fn registers_used(&self) -> impl Iterator<Item = u8> {
        let mut used = [false; REGISTERS];
        let mut mark = |register: u8, count: u8| {
            for register in register..register.saturating_add(count) {
                if let Some(used) = used.get_mut(usize::from(register)) {
                    *used = true;
                }
            }
        };
        for step in &self.steps {
            match *step {
                Step::Field { place, .. } => mark(place.register, 1),
                Step::Compare { left, right, .. } => {
                    mark(left, 1);
                    mark(right, 1);
                }
                Step::SetLoad {
                    to, index, place, ..
                } => {
                    mark(to, 1);
                    mark(index, 1);
                    mark(place.register, 1);
                }
                Step::Binary { to, right, .. } => {
                    mark(to, 1);
                    mark(right, 1);
                }
                Step::Geneve { to, place } => {
                    mark(to, 3);
                    mark(place.register, 1);
                }
                Step::SetNumber { to, .. } | Step::SetLength { to, .. } | Step::Negate { to } => {
                    mark(to, 1);
                }
                _ => mark(0, FIRST_FREE),
            }
        }
        (0_u8..)
            .zip(used)
            .filter_map(|(register, used)| used.then_some(register))
    }
}

/// The steps for packets with, or without, an extracted tag.
struct Part<'a> {
    asm: &'a mut Assembler,
    view: KernelView,
    tagged: bool,
    accept: Label,
    reject: Label,
}

impl Part<'_> {
    fn program(&mut self, program: &Program) -> Result<(), NotInKernel> {
        let labels: Vec<Label> = program.steps.iter().map(|_| self.asm.label()).collect();
        let (accept, reject) = (self.accept, self.reject);
        let leads = |target: u32| match usize::try_from(target).ok() {
            Some(index) if index < labels.len() => labels[index],
            _ if target == ACCEPT => accept,
            _ => reject,
        };
        // Unless it starts with the first step, which comes next anyway.
        if program.start != 0 || labels.is_empty() {
            self.asm.jump(leads(program.start));
        }
        for (index, step) in program.steps.iter().enumerate() {
            self.asm.bind(labels[index]);
            self.step(step, &leads)?;
            let ends = targets(&mut step.clone()).next().is_some();
            if index + 1 == labels.len() && !ends {
                // Like the evaluation when the steps are over.
                self.asm.jump(reject);
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step, leads: &impl Fn(u32) -> Label) -> Result<(), NotInKernel> {
        match *step {
            Step::Field {
                place,
                width,
                relation,
                mask,
                value,
                yes,
                no,
            } => {
                self.load(&place, None, width)?;
                if mask != u32::MAX {
                    self.asm.alu32(Alu::And, Reg::R0, imm(mask));
                }
                self.branch(relation, imm(value).into(), leads(yes), leads(no));
            }
            Step::Compare {
                left,
                right,
                relation,
                yes,
                no,
            } => {
                self.get(Reg::R0, left);
                self.get(Reg::R1, right);
                self.branch(relation, Reg::R1.into(), leads(yes), leads(no));
            }
            Step::Jump { to } => self.asm.jump(leads(to)),
            Step::SetNumber { to, value } => {
                self.asm.store(Width::Word, Reg::R10, stack(to), imm(value));
            }
            Step::SetLength { to, less: 0 } => self.put(to, Reg::R7),
            Step::SetLength { to, less } => {
                self.asm.set(Reg::R0, Reg::R7);
                self.asm.alu32(Alu::Sub, Reg::R0, imm(less));
                self.put(to, Reg::R0);
            }
            Step::SetLoad {
                to,
                index,
                place,
                width,
            } => {
                self.load(&place, Some(index), width)?;
                self.put(to, Reg::R0);
            }
            Step::Negate { to } => {
                self.get(Reg::R0, to);
                self.asm.negate32(Reg::R0);
                self.put(to, Reg::R0);
            }
            Step::Binary {
                to,
                operator,
                right,
            } => self.binary(to, operator, right),
            Step::Geneve { place, to } => self.geneve(&place, to)?,
            Step::Chain { .. } => return refuse("protochain needs a loop"),
            Step::Networks { .. } => return refuse("named networks are looked up in user space"),
            Step::Radiotap { .. }
            | Step::Prism { .. }
            | Step::Avs { .. }
            | Step::WlanPayload { .. } => return refuse("802.11 headers are read in user space"),
        }
        Ok(())
    }

    fn branch(&mut self, relation: Relation, right: Operand, yes: Label, no: Label) {
        let condition = match relation {
            Relation::Equal => Condition::Equal,
            Relation::NotEqual => Condition::NotEqual,
            Relation::Less => Condition::Less,
            Relation::LessEqual => Condition::LessEqual,
            Relation::Greater => Condition::Greater,
            Relation::GreaterEqual => Condition::GreaterEqual,
        };
        self.asm.jump_if32(condition, Reg::R0, right, yes);
        self.asm.jump(no);
    }

    fn binary(&mut self, to: u8, operator: Operator, right: u8) {
        self.get(Reg::R0, to);
        self.get(Reg::R1, right);
        let alu = match operator {
            Operator::Add => Alu::Add,
            Operator::Subtract => Alu::Sub,
            Operator::Multiply => Alu::Mul,
            Operator::Divide => Alu::Div,
            Operator::Modulo => Alu::Mod,
            Operator::And => Alu::And,
            Operator::Or => Alu::Or,
            Operator::Xor => Alu::Xor,
            Operator::ShiftLeft => Alu::ShiftLeft,
            Operator::ShiftRight => Alu::ShiftRight,
        };
        match operator {
            Operator::Divide | Operator::Modulo => {
                self.asm
                    .jump_if32(Condition::Equal, Reg::R1, 0, self.reject);
                self.asm.alu32(alu, Reg::R0, Reg::R1);
            }
            // The kernel's shifts use only the low five bits.
            Operator::ShiftLeft | Operator::ShiftRight => {
                let (small, done) = (self.asm.label(), self.asm.label());
                self.asm.jump_if32(Condition::Less, Reg::R1, 32, small);
                self.asm.set(Reg::R0, 0);
                self.asm.jump(done);
                self.asm.bind(small);
                self.asm.alu32(alu, Reg::R0, Reg::R1);
                self.asm.bind(done);
            }
            _ => self.asm.alu32(alu, Reg::R0, Reg::R1),
        }
        self.put(to, Reg::R0);
    }

    /// RFC 8926 section 3.4, as [`crate::program`] reads it.
    fn geneve(&mut self, place: &Place, to: u8) -> Result<(), NotInKernel> {
        let at = |more: u32| Place {
            offset: place.offset.wrapping_add(more),
            ..*place
        };
        // The start, and after the options.
        self.start(place, None)?;
        self.asm.alu32(Alu::Add, Reg::R8, imm(place.offset));
        self.put(to, Reg::R8);
        self.load(&at(0), None, Load::Byte)?;
        self.asm.alu32(Alu::And, Reg::R0, 0x3f);
        self.asm.alu32(Alu::ShiftLeft, Reg::R0, 2);
        self.get(Reg::R1, to);
        self.asm.alu32(Alu::Add, Reg::R0, Reg::R1);
        self.asm.alu32(Alu::Add, Reg::R0, 8);
        self.put(to + 1, Reg::R0);
        self.put(to + 2, Reg::R0);
        self.load(&at(2), None, Load::Half)?;
        let (ethernet, done) = (self.asm.label(), self.asm.label());
        self.asm
            .jump_if32(Condition::Equal, Reg::R0, 0x6558, ethernet);
        self.get(Reg::R1, to);
        self.asm.alu32(Alu::Add, Reg::R1, 2);
        self.put(to, Reg::R1);
        self.asm.jump(done);
        self.asm.bind(ethernet);
        self.get(Reg::R1, to + 1);
        self.asm.alu32(Alu::Add, Reg::R1, 12);
        self.put(to, Reg::R1);
        self.asm.alu32(Alu::Add, Reg::R1, 2);
        self.put(to + 2, Reg::R1);
        self.asm.bind(done);
        Ok(())
    }

    fn get(&mut self, reg: Reg, register: u8) {
        self.asm.load(Width::Word, reg, Reg::R10, stack(register));
    }

    fn put(&mut self, register: u8, reg: Reg) {
        self.asm.store(Width::Word, Reg::R10, stack(register), reg);
    }

    /// `R8` = the start of a place, modulo 2^32, without its offset.
    fn start(&mut self, place: &Place, index: Option<u8>) -> Result<(), NotInKernel> {
        if place.register == NO_REGISTER {
            self.asm.set(Reg::R8, 0);
        } else {
            self.get(Reg::R8, place.register);
        }
        if place.after_ip {
            if place.register == NO_REGISTER {
                self.load_fixed(place.ip_offset, Load::Byte)?;
                self.asm.set(Reg::R8, 0);
            } else {
                self.asm.alu64(Alu::Add, Reg::R8, imm(place.ip_offset));
                self.load_computed(Load::Byte)?;
                self.get(Reg::R8, place.register);
            }
            self.asm.alu32(Alu::And, Reg::R0, 0x0f);
            self.asm.alu32(Alu::ShiftLeft, Reg::R0, 2);
            self.asm.alu32(Alu::Add, Reg::R8, Reg::R0);
        }
        if let Some(index) = index {
            self.get(Reg::R1, index);
            self.asm.alu32(Alu::Add, Reg::R8, Reg::R1);
        }
        Ok(())
    }

    /// `R0` = the value at a place; jumps to `reject` if it is not in the packet.
    fn load(&mut self, place: &Place, index: Option<u8>, width: Load) -> Result<(), NotInKernel> {
        if place.register == NO_REGISTER && !place.after_ip && index.is_none() {
            return self.load_fixed(place.offset, width);
        }
        self.start(place, index)?;
        // The sum does not wrap: an offset beyond 2^31 is in no packet.
        match i32::try_from(place.offset) {
            Ok(offset) => self.asm.alu64(Alu::Add, Reg::R8, offset),
            Err(_) => {
                self.asm.jump(self.reject);
                return Ok(());
            }
        }
        self.load_computed(width)
    }

    /// `R0` = the value at a known offset.
    fn load_fixed(&mut self, at: u32, width: Load) -> Result<(), NotInKernel> {
        let bytes = bytes(width);
        let Some(end) = at
            .checked_add(bytes)
            .and_then(|end| i32::try_from(end).ok())
        else {
            self.asm.jump(self.reject);
            return Ok(());
        };
        self.asm.jump_if(Condition::Less, Reg::R7, end, self.reject);
        match self.view {
            KernelView::Xdp => self.load_driver(at, width),
            KernelView::Cooked => return self.load_cooked(at, width),
            KernelView::Packet if !self.tagged || at + bytes <= TAG_AT => {
                self.asm.load_packet(kernel_width(width), imm(at));
            }
            KernelView::Packet if at >= TAG_AT + TAG_LEN => {
                let at = imm(at - TAG_LEN);
                self.asm.load_packet(kernel_width(width), at);
            }
            KernelView::Packet => self.load_across_tag(at, bytes),
        }
        Ok(())
    }

    /// `R0` = bytes some of which are the tag's, one by one.
    fn load_across_tag(&mut self, at: u32, count: u32) {
        self.asm.set(Reg::R9, 0);
        for at in at..at + count {
            match at {
                // Both halves of the tag, high byte first.
                12..=15 => {
                    self.tag_half(at >= 14);
                    if at % 2 == 0 {
                        self.asm.alu32(Alu::ShiftRight, Reg::R0, 8);
                    }
                    self.asm.alu32(Alu::And, Reg::R0, 0xff);
                }
                _ => {
                    let real = if at < TAG_AT { at } else { at - TAG_LEN };
                    self.asm.load_packet(Width::Byte, imm(real));
                }
            }
            self.asm.alu32(Alu::ShiftLeft, Reg::R9, 8);
            self.asm.alu32(Alu::Or, Reg::R9, Reg::R0);
        }
        self.asm.set(Reg::R0, Reg::R9);
    }

    /// `R0` = the tag's type, or its control information.
    fn tag_half(&mut self, control: bool) {
        if control {
            self.asm.load(Width::Word, Reg::R0, Reg::R6, skb::VLAN_TCI);
        } else {
            self.asm
                .load(Width::Word, Reg::R0, Reg::R6, skb::VLAN_PROTO);
            self.asm.network_order(Reg::R0, 16);
        }
    }

    fn protocol(&mut self) {
        self.asm.load(Width::Word, Reg::R0, Reg::R6, skb::PROTOCOL);
        self.asm.network_order(Reg::R0, 16);
    }

    /// `R0` = a field of the cooked header, or of the packet after it.
    fn load_cooked(&mut self, at: u32, width: Load) -> Result<(), NotInKernel> {
        match (at, width) {
            (0, Load::Half) if self.tagged => self.tag_half(false),
            (0, Load::Half) => self.protocol(),
            (4, Load::Word) => self.asm.load(Width::Word, Reg::R0, Reg::R6, skb::IFINDEX),
            (10, Load::Byte) => self
                .asm
                .load(Width::Word, Reg::R0, Reg::R6, skb::PACKET_TYPE),
            (20, Load::Half) if self.tagged => self.tag_half(true),
            (22, Load::Half) if self.tagged => self.protocol(),
            _ => {
                let header = COOKED_LEN + if self.tagged { TAG_LEN } else { 0 };
                let Some(at) = at.checked_sub(header) else {
                    return refuse("it tests the cooked link-layer header, which the kernel hides");
                };
                self.asm.load_packet(kernel_width(width), imm(at));
            }
        }
        Ok(())
    }

    /// `R0` = bytes at a known offset of the driver's buffer, of which only the first part can be
    /// read directly.
    fn load_driver(&mut self, at: u32, width: Load) {
        let (helper, done) = (self.asm.label(), self.asm.label());
        let end = imm(at + bytes(width));
        // Offsets that the verifier accepts in an instruction.
        let direct = i16::try_from(at).ok();
        if let Some(at) = direct {
            self.asm.load(Width::Word, Reg::R1, Reg::R6, xdp::DATA);
            self.asm.load(Width::Word, Reg::R2, Reg::R6, xdp::DATA_END);
            self.asm.set(Reg::R3, Reg::R1);
            self.asm.alu64(Alu::Add, Reg::R3, end);
            self.asm
                .jump_if(Condition::Greater, Reg::R3, Reg::R2, helper);
            self.asm.load(kernel_width(width), Reg::R0, Reg::R1, at);
            self.asm.jump(done);
        }
        self.asm.bind(helper);
        self.asm.set(Reg::R2, imm(at));
        self.load_by_helper(width);
        self.asm.bind(done);
        self.turn(width);
    }

    /// `R0` = bytes at the offset in `R2`, in network order.
    fn load_by_helper(&mut self, width: Load) {
        self.asm.set(Reg::R1, Reg::R6);
        self.asm.set(Reg::R3, Reg::R10);
        self.asm.alu64(Alu::Add, Reg::R3, i32::from(SCRATCH_AT));
        self.asm.set(Reg::R4, imm(bytes(width)));
        self.asm.call(XDP_LOAD_BYTES);
        self.asm
            .jump_if(Condition::NotEqual, Reg::R0, 0, self.reject);
        self.asm
            .load(kernel_width(width), Reg::R0, Reg::R10, SCRATCH_AT);
    }

    /// Converts the loaded value from network to host order.
    fn turn(&mut self, width: Load) {
        match width {
            Load::Byte => {}
            Load::Half => self.asm.network_order(Reg::R0, 16),
            Load::Word => self.asm.network_order(Reg::R0, 32),
        }
    }

    /// `R0` = the value at the offset in `R8`, of 64 bits, which is overwritten.
    fn load_computed(&mut self, width: Load) -> Result<(), NotInKernel> {
        let count = bytes(width);
        self.asm.set(Reg::R1, Reg::R8);
        self.asm.alu64(Alu::Add, Reg::R1, imm(count));
        self.asm
            .jump_if(Condition::Greater, Reg::R1, Reg::R7, self.reject);
        let kernel = kernel_width(width);
        match self.view {
            KernelView::Xdp => {
                self.asm.set(Reg::R2, Reg::R8);
                self.load_by_helper(width);
                self.turn(width);
            }
            KernelView::Cooked => {
                // Computed offsets only read the packet itself.
                let header = COOKED_LEN + if self.tagged { TAG_LEN } else { 0 };
                self.asm
                    .jump_if(Condition::Less, Reg::R8, imm(header), self.reject);
                self.asm.alu64(Alu::Sub, Reg::R8, imm(header));
                self.asm.load_packet_at(kernel, Reg::R8, 0);
            }
            KernelView::Packet if self.tagged => {
                let (across, before, done) = (self.asm.label(), self.asm.label(), self.asm.label());
                let after = imm(TAG_AT + TAG_LEN);
                self.asm
                    .jump_if(Condition::LessEqual, Reg::R1, imm(TAG_AT), before);
                self.asm.jump_if(Condition::Less, Reg::R8, after, across);
                self.asm.load_packet_at(kernel, Reg::R8, -imm(TAG_LEN));
                self.asm.jump(done);
                self.asm.bind(before);
                self.asm.load_packet_at(kernel, Reg::R8, 0);
                self.asm.jump(done);
                self.asm.bind(across);
                self.compute_across_tag(count);
                self.asm.bind(done);
            }
            KernelView::Packet => self.asm.load_packet_at(kernel, Reg::R8, 0),
        }
        Ok(())
    }

    /// As [`Part::load_across_tag`], at the offset in `R8`.
    fn compute_across_tag(&mut self, count: u32) {
        self.asm.set(Reg::R9, 0);
        for _ in 0..count {
            let (before, after, done) = (self.asm.label(), self.asm.label(), self.asm.label());
            self.asm.alu32(Alu::ShiftLeft, Reg::R9, 8);
            self.asm
                .jump_if(Condition::Less, Reg::R8, imm(TAG_AT), before);
            let end = imm(TAG_AT + TAG_LEN);
            self.asm
                .jump_if(Condition::GreaterEqual, Reg::R8, end, after);
            // Type and control in one number, shifted right by 8 * (15 - R8).
            self.tag_half(false);
            self.asm.alu32(Alu::ShiftLeft, Reg::R0, 16);
            self.asm.load(Width::Word, Reg::R1, Reg::R6, skb::VLAN_TCI);
            self.asm.alu32(Alu::Or, Reg::R0, Reg::R1);
            self.asm.set(Reg::R1, imm(TAG_AT + TAG_LEN - 1));
            self.asm.alu32(Alu::Sub, Reg::R1, Reg::R8);
            self.asm.alu32(Alu::ShiftLeft, Reg::R1, 3);
            self.asm.alu32(Alu::ShiftRight, Reg::R0, Reg::R1);
            self.asm.alu32(Alu::And, Reg::R0, 0xff);
            self.asm.jump(done);
            self.asm.bind(before);
            self.asm.load_packet_at(Width::Byte, Reg::R8, 0);
            self.asm.jump(done);
            self.asm.bind(after);
            self.asm.load_packet_at(Width::Byte, Reg::R8, -imm(TAG_LEN));
            self.asm.bind(done);
            self.asm.alu32(Alu::Or, Reg::R9, Reg::R0);
            self.asm.alu64(Alu::Add, Reg::R8, 1);
        }
        self.asm.set(Reg::R0, Reg::R9);
    }
}

fn refuse<T>(reason: &'static str) -> Result<T, NotInKernel> {
    Err(NotInKernel { reason })
}

fn stack(register: u8) -> i16 {
    REGISTERS_AT + 4 * i16::from(register)
}

/// A 32-bit number as an instruction holds it.
fn imm(number: u32) -> i32 {
    number.cast_signed()
}

fn bytes(width: Load) -> u32 {
    match width {
        Load::Byte => 1,
        Load::Half => 2,
        Load::Word => 4,
    }
}

fn kernel_width(width: Load) -> Width {
    match width {
        Load::Byte => Width::Byte,
        Load::Half => Width::Half,
        Load::Word => Width::Word,
    }
}
