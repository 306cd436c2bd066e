//! The assembler.

/// A register. `R10` is the frame pointer, with 512 bytes of stack below it; calls
/// destroy `R1` to `R5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The right side of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// A number; 64-bit operations sign-extend it.
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(number: i32) -> Self {
        Self::Imm(number)
    }
}

/// Bytes of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// 1
    Byte = 0x10,
    /// 2
    Half = 0x08,
    /// 4
    Word = 0x00,
    /// 8
    Double = 0x18,
}

/// Arithmetic (RFC 9669 section 4.1). Numbers are unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Div = 0x30,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Mod = 0x90,
    Xor = 0xa0,
    Move = 0xb0,
}

/// Comparisons of unsigned numbers (RFC 9669 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Condition {
    Equal = 0x10,
    Greater = 0x20,
    GreaterEqual = 0x30,
    /// Some bits are set in both.
    AnyBit = 0x40,
    NotEqual = 0x50,
    Less = 0xa0,
    LessEqual = 0xb0,
}

/// A jump target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// A jump that does not fit an instruction: at most 32,767 instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the program is too large: a jump over {0} instructions")]
pub struct TooLarge(usize);

/// Instruction classes and modes (RFC 9669 sections 3.1, 4 and 5).
mod class {
    pub(super) const LD: u8 = 0x00;
    pub(super) const LDX: u8 = 0x01;
    pub(super) const ST: u8 = 0x02;
    pub(super) const STX: u8 = 0x03;
    pub(super) const ALU: u8 = 0x04;
    pub(super) const JMP: u8 = 0x05;
    pub(super) const JMP32: u8 = 0x06;
    pub(super) const ALU64: u8 = 0x07;
}
mod mode {
    pub(super) const ABS: u8 = 0x20;
    pub(super) const IND: u8 = 0x40;
    pub(super) const MEM: u8 = 0x60;
    pub(super) const ATOMIC: u8 = 0xc0;
}
const SOURCE_REG: u8 = 0x08;
const DOUBLE_IMM: u8 = 0x18;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const JUMP: u8 = 0x05;
/// Atomic operations (RFC 9669 section 5.3): with the bit that fetches the earlier value.
const EXCHANGE: i32 = 0xe1;
const COMPARE_EXCHANGE: i32 = 0xf1;
/// Byte swap to and from network order.
const TO_BIG_ENDIAN: u8 = 0xdc;

#[derive(Clone, Copy, Debug)]
struct Insn {
    code: u8,
    dst: u8,
    src: u8,
    offset: i16,
    imm: i32,
}

/// A program being written, from its first instruction on.
#[derive(Debug, Default)]
pub struct Assembler {
    insns: Vec<Insn>,
    /// Where each label is bound.
    labels: Vec<Option<usize>>,
    /// Instructions that jump, and to which label.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// An empty program.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Instructions so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.insns.len()
    }

    /// Whether there are no instructions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.insns.is_empty()
    }

    /// A new label, not yet bound.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds `label` to the next instruction.
    ///
    /// # Panics
    ///
    /// If the label is bound already.
    pub fn bind(&mut self, label: Label) {
        let place = &mut self.labels[label.0];
        assert!(place.is_none(), "a label is bound once");
        *place = Some(self.insns.len());
    }

    fn push(&mut self, code: u8, dst: u8, src: u8, offset: i16, imm: i32) {
        self.insns.push(Insn {
            code,
            dst,
            src,
            offset,
            imm,
        });
    }

    fn operation(&mut self, code: u8, dst: Reg, operand: Operand, offset: i16) {
        match operand {
            Operand::Reg(src) => self.push(code | SOURCE_REG, dst as u8, src as u8, offset, 0),
            Operand::Imm(imm) => self.push(code, dst as u8, 0, offset, imm),
        }
    }

    /// 64-bit arithmetic: `dst = dst op operand`.
    pub fn alu64(&mut self, op: Alu, dst: Reg, operand: impl Into<Operand>) {
        self.operation(class::ALU64 | op as u8, dst, operand.into(), 0);
    }

    /// 32-bit arithmetic; the upper half of `dst` becomes 0.
    pub fn alu32(&mut self, op: Alu, dst: Reg, operand: impl Into<Operand>) {
        self.operation(class::ALU | op as u8, dst, operand.into(), 0);
    }

    /// `dst = operand`, all 64 bits.
    pub fn set(&mut self, dst: Reg, operand: impl Into<Operand>) {
        self.alu64(Alu::Move, dst, operand);
    }

    /// `dst = number`.
    pub fn set_u64(&mut self, dst: Reg, number: u64) {
        self.double_imm(dst, 0, low_half(number), low_half(number >> 32));
    }

    /// `dst = -dst`, 32 bits.
    pub fn negate32(&mut self, dst: Reg) {
        const NEGATE: u8 = 0x80;
        self.push(class::ALU | NEGATE, dst as u8, 0, 0, 0);
    }

    /// Converts the low `bits` (16, 32 or 64) from network to host order; the bits above become 0.
    pub fn network_order(&mut self, dst: Reg, bits: i32) {
        self.push(TO_BIG_ENDIAN, dst as u8, 0, 0, bits);
    }

    /// `dst = *(base + offset)`.
    pub fn load(&mut self, width: Width, dst: Reg, base: Reg, offset: i16) {
        let code = class::LDX | mode::MEM | width as u8;
        self.push(code, dst as u8, base as u8, offset, 0);
    }

    /// `*(base + offset) = operand`.
    pub fn store(&mut self, width: Width, base: Reg, offset: i16, operand: impl Into<Operand>) {
        let class = match operand.into() {
            Operand::Reg(src) => {
                let code = class::STX | mode::MEM | width as u8;
                self.push(code, base as u8, src as u8, offset, 0);
                return;
            }
            Operand::Imm(imm) => (class::ST | mode::MEM | width as u8, imm),
        };
        self.push(class.0, base as u8, 0, offset, class.1);
    }

    /// `*(base + offset) += src`, 64 bits, atomically for all CPUs.
    pub fn atomic_add(&mut self, base: Reg, offset: i16, src: Reg) {
        self.atomic(base, offset, src, 0);
    }

    /// `src = *(base + offset)` and `*(base + offset) = src` at once, 64 bits, with a barrier.
    pub fn atomic_exchange(&mut self, base: Reg, offset: i16, src: Reg) {
        self.atomic(base, offset, src, EXCHANGE);
    }

    /// `*(base + offset) = src` if it is `R0`, at once, 64 bits, with a barrier; `R0` is what it was.
    pub fn atomic_compare_exchange(&mut self, base: Reg, offset: i16, src: Reg) {
        self.atomic(base, offset, src, COMPARE_EXCHANGE);
    }

    fn atomic(&mut self, base: Reg, offset: i16, src: Reg, operation: i32) {
        let code = class::STX | mode::ATOMIC | Width::Double as u8;
        self.push(code, base as u8, src as u8, offset, operation);
    }

    /// `R0` = the packet's bytes at `offset`, in host order. `R6` must hold the socket buffer; a
    /// load outside the packet ends the program with 0. For socket filters and traffic control only
    /// (RFC 9669 section 5.4).
    pub fn load_packet(&mut self, width: Width, offset: i32) {
        self.push(class::LD | mode::ABS | width as u8, 0, 0, 0, offset);
    }

    /// Like [`Assembler::load_packet`], at `index + offset`.
    pub fn load_packet_at(&mut self, width: Width, index: Reg, offset: i32) {
        let code = class::LD | mode::IND | width as u8;
        self.push(code, 0, index as u8, 0, offset);
    }

    /// `dst` = the address of `offset` within the value of a shared array.
    pub fn shared_address(&mut self, dst: Reg, map_fd: i32, offset: i32) {
        const PSEUDO_MAP_VALUE: u8 = 2;
        self.double_imm(dst, PSEUDO_MAP_VALUE, map_fd, offset);
    }

    /// `dst` = a map, as the argument of a helper.
    pub fn map(&mut self, dst: Reg, map_fd: i32) {
        const PSEUDO_MAP_FD: u8 = 1;
        self.double_imm(dst, PSEUDO_MAP_FD, map_fd, 0);
    }

    fn double_imm(&mut self, dst: Reg, src: u8, low: i32, high: i32) {
        self.push(DOUBLE_IMM, dst as u8, src, 0, low);
        self.push(0, 0, 0, 0, high);
    }

    /// Calls a kernel helper (`enum bpf_func_id`).
    pub fn call(&mut self, helper: i32) {
        self.push(CALL, 0, 0, 0, helper);
    }

    /// Ends the program; `R0` is its result.
    pub fn exit(&mut self) {
        self.push(EXIT, 0, 0, 0, 0);
    }

    /// Continues at `to`.
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.push(JUMP, 0, 0, 0, 0);
    }

    /// Continues at `to` if `left condition right`, comparing 64 bits.
    pub fn jump_if(
        &mut self,
        condition: Condition,
        left: Reg,
        right: impl Into<Operand>,
        to: Label,
    ) {
        self.jumps.push((self.insns.len(), to));
        self.operation(class::JMP | condition as u8, left, right.into(), 0);
    }

    /// Like [`Assembler::jump_if`], comparing 32 bits.
    pub fn jump_if32(
        &mut self,
        condition: Condition,
        left: Reg,
        right: impl Into<Operand>,
        to: Label,
    ) {
        self.jumps.push((self.insns.len(), to));
        self.operation(class::JMP32 | condition as u8, left, right.into(), 0);
    }

    /// The instruction words as the kernel accepts them: without unreachable ones, which it
    /// refuses.
    ///
    /// # Errors
    ///
    /// If a jump is too long.
    ///
    /// # Panics
    ///
    /// If a label that is jumped to is not bound.
    pub fn finish(self) -> Result<Vec<u64>, TooLarge> {
        let mut targets: Vec<Option<usize>> = vec![None; self.insns.len()];
        for &(at, label) in &self.jumps {
            let target = self.labels[label.0].expect("every label is bound");
            targets[at] = Some(target);
        }
        let reached = self.reached(&targets);
        let mut places = Vec::with_capacity(reached.len());
        let mut kept = 0;
        for &reached in &reached {
            places.push(kept);
            kept += usize::from(reached);
        }
        let mut words = Vec::with_capacity(kept);
        for (at, insn) in self.insns.iter().enumerate().filter(|&(at, _)| reached[at]) {
            let mut insn = *insn;
            if let Some(target) = targets[at] {
                // Counted from the instruction after the jump.
                let distance = places[target].wrapping_sub(places[at] + 1).cast_signed();
                let too_large = |_| TooLarge(distance.unsigned_abs());
                insn.offset = i16::try_from(distance).map_err(too_large)?;
            }
            words.push(insn.word());
        }
        Ok(words)
    }

    /// Which instructions are reachable, given the jump targets `targets`.
    fn reached(&self, targets: &[Option<usize>]) -> Vec<bool> {
        let mut reached = vec![false; self.insns.len() + 1];
        let mut open = vec![0];
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut reached[at], true) {
                continue;
            }
            let Some(insn) = self.insns.get(at) else {
                continue;
            };
            open.extend(targets[at]);
            if insn.code == DOUBLE_IMM {
                reached[at + 1] = true;
                open.push(at + 2);
            } else if insn.code != JUMP && insn.code != EXIT {
                open.push(at + 1);
            }
        }
        reached
    }
}

impl Insn {
    /// RFC 9669 section 3: opcode, registers, offset, immediate.
    fn word(&self) -> u64 {
        let [low, high] = self.offset.to_le_bytes();
        let [a, b, c, d] = self.imm.to_le_bytes();
        let registers = self.dst | self.src << 4;
        u64::from_le_bytes([self.code, registers, low, high, a, b, c, d])
    }
}

#[allow(clippy::cast_possible_truncation)]
fn low_half(number: u64) -> i32 {
    (number as u32).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instruction words spelled out in the kernel's samples.
    #[test]
    fn instruction_words_are_those_of_rfc_9669() {
        let mut asm = Assembler::new();
        let end = asm.label();
        asm.set(Reg::R0, -1);
        asm.alu32(Alu::Add, Reg::R3, Reg::R4);
        asm.load(Width::Word, Reg::R1, Reg::R6, 16);
        asm.store(Width::Double, Reg::R10, -8, Reg::R1);
        asm.store(Width::Word, Reg::R10, -12, 7);
        asm.atomic_add(Reg::R2, 8, Reg::R1);
        asm.atomic_exchange(Reg::R2, 8, Reg::R1);
        asm.atomic_compare_exchange(Reg::R2, 8, Reg::R1);
        asm.load_packet(Width::Half, 12);
        asm.network_order(Reg::R5, 16);
        asm.set_u64(Reg::R7, 0x1122_3344_8566_7788);
        asm.jump_if32(Condition::Equal, Reg::R0, 0x0800, end);
        asm.call(8);
        asm.bind(end);
        asm.exit();
        let expected = [
            0xffff_ffff_0000_00b7,
            0x0000_0000_0000_430c,
            0x0000_0000_0010_6161,
            0x0000_0000_fff8_1a7b,
            0x0000_0007_fff4_0a62,
            0x0000_0000_0008_12db,
            0x0000_00e1_0008_12db,
            0x0000_00f1_0008_12db,
            0x0000_000c_0000_0028,
            0x0000_0010_0000_05dc,
            0x8566_7788_0000_0718,
            0x1122_3344_0000_0000,
            0x0000_0800_0001_0016,
            0x0000_0008_0000_0085,
            0x0000_0000_0000_0095_u64,
        ];
        assert_eq!(asm.finish().unwrap(), expected);
    }

    #[test]
    fn unreachable_instructions_are_omitted() {
        let mut asm = Assembler::new();
        let (skip, end) = (asm.label(), asm.label());
        asm.jump_if(Condition::Equal, Reg::R1, 0, end);
        asm.jump(skip);
        asm.set_u64(Reg::R0, 1);
        asm.exit();
        asm.bind(skip);
        asm.set(Reg::R0, 2);
        asm.bind(end);
        asm.exit();
        let words = asm.finish().unwrap();
        assert_eq!(words.len(), 4);
        assert_eq!(words[0] >> 16 & 0xffff, 2);
        assert_eq!(words[1] >> 16 & 0xffff, 0);
    }

    #[test]
    fn a_jump_that_is_too_long_is_refused() {
        let mut asm = Assembler::new();
        let end = asm.label();
        asm.jump_if(Condition::Equal, Reg::R1, 0, end);
        for _ in 0..40_000 {
            asm.set(Reg::R0, 0);
        }
        asm.bind(end);
        asm.exit();
        assert_eq!(asm.finish(), Err(TooLarge(40_000)));
    }
}
