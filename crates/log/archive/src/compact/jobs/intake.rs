//! Packets of block files, collected into runs.

use std::collections::HashMap;
use std::sync::Arc;

use strata_blocks::{ClassCount, PacketRecord, Record, VerdictRecord};
use strata_store::{Block, Damage, Recording, add_counts};
use strata_wire::{Context, FlowHasher, FlowShare, FragmentTable, Interface, LinkType, Meta};

use crate::columns::verdicts::{Verdict, Verdicts};
use crate::compact::jobs::defined::Missing;
use crate::compact::jobs::protection::Protection;
use crate::error::ArchiveError;
use crate::run::Run;
use crate::run::pending::{PENDING_MAX, Pending};

/// For an interface without a description: no header is known there.
const NO_LINK: LinkType = LinkType(u16::MAX);
const HOUR_NS: u64 = 3_600_000_000_000;

/// What to do with runs.
pub(crate) trait Runs {
    /// A run has ended. Returns one without packets, to be filled next.
    fn run(&mut self, ended: Ended) -> Result<Run, ArchiveError>;

    /// The following packets are from another hour or mode.
    fn close(&mut self, intake: &Intake) -> Result<(), ArchiveError>;
}

/// A run that has ended, and what its packets refer to.
pub(crate) struct Ended {
    pub(crate) run: Run,
    pub(crate) verdicts: Arc<Vec<Verdict>>,
    pub(crate) context: Arc<Context>,
    pub(crate) protection: Arc<Protection>,
    pub(crate) interfaces: Arc<HashMap<u16, Interface>>,
}

impl Ended {
    /// The run, without its packets.
    pub(crate) fn emptied(self) -> Run {
        let mut run = self.run;
        run.clear();
        run
    }
}

/// A run being collected, and what its packets refer to.
pub(crate) struct Intake {
    hasher: FlowHasher,
    /// Later fragments belong to the flow of their first one, also of one in an earlier run.
    fragments: FragmentTable,
    pub(crate) run: Run,
    verdicts: Verdicts,
    /// By number in the records: code, class, score.
    known: Vec<Option<(u32, u8, Option<u16>)>>,
    /// By the same number, as defined: the meaning may change with the context.
    defined: Vec<Option<VerdictRecord>>,
    pub(crate) context: Arc<Context>,
    protection: Arc<Protection>,
    pub(crate) interfaces: Arc<HashMap<u16, Interface>>,
    /// Their link types, by number.
    links: Vec<Option<LinkType>>,
    pub(crate) metas: Vec<Meta>,
    undefined: Missing,
    /// Interfaces and verdicts that the file has defined, by number.
    in_file: [Vec<bool>; 2],
    /// Flows that no policy may protect are left out, and counted.
    only_protected: bool,
    left_out: Vec<ClassCount>,
}

impl Intake {
    pub(crate) fn new(recording: &Recording, only_protected: bool) -> Self {
        Self {
            undefined: Missing::default(),
            in_file: Default::default(),
            only_protected,
            left_out: Vec::new(),
            hasher: FlowHasher::new(recording.hash_seed),
            fragments: FragmentTable::default(),
            run: Run::default(),
            verdicts: Verdicts::default(),
            known: Vec::new(),
            defined: Vec::new(),
            context: Arc::new(Context {
                mode: recording.mode.clone(),
                classes: recording.classes.clone(),
                ..Context::default()
            }),
            protection: Arc::default(),
            interfaces: Arc::default(),
            links: Vec::new(),
            metas: Vec::new(),
        }
    }

    /// Adds the records of a block; the inner error is the block's.
    pub(crate) fn block(
        &mut self,
        block: &Block,
        runs: &mut impl Runs,
    ) -> Result<Result<(), Damage>, ArchiveError> {
        let mut pending = Vec::with_capacity(PENDING_MAX);
        self.run.set_share(FlowShare::ALL);
        for record in block.records() {
            match record {
                Ok(Record::Packet(packet)) => {
                    self.check_defined(&packet, block);
                    let one = self.pending(packet);
                    if self.leaves_out(&one) {
                        continue;
                    }
                    pending.push(one);
                    if pending.len() == PENDING_MAX {
                        self.take_in(&mut pending, runs)?;
                    }
                }
                Ok(Record::Verdict(id, verdict)) => self.define(id, verdict),
                Ok(record) => {
                    self.take_in(&mut pending, runs)?;
                    if let Err(problem) = self.record(record, runs)? {
                        return Ok(Err(Damage {
                            file: block.file.clone(),
                            offset: block.records_at(),
                            problem,
                            missing: None,
                        }));
                    }
                }
                Err(bad) => {
                    return Ok(Err(Damage {
                        file: block.file.clone(),
                        offset: block.records_at() + bad.at as u64,
                        problem: bad.problem.into(),
                        missing: None,
                    }));
                }
            }
        }
        self.take_in(&mut pending, runs)?;
        Ok(Ok(()))
    }

    fn pending<'p>(&mut self, packet: PacketRecord<'p>) -> Pending<'p> {
        let link = self.links.get(usize::from(packet.interface)).copied();
        let link = link.flatten().unwrap_or(NO_LINK);
        let known = self.known.get(usize::from(packet.verdict));
        let verdict = match known {
            Some(Some(verdict)) => *verdict,
            _ => self.look_up(packet.verdict),
        };
        Pending::new(packet, link, (&self.hasher, &mut self.fragments), verdict)
    }

    /// The following blocks are of another file, which defines all it needs: a definition of the file
    /// before may have another meaning.
    pub(crate) fn begin_file(&mut self) {
        self.undefined = Missing::default();
        self.in_file.iter_mut().for_each(Vec::clear);
    }

    fn check_defined(&mut self, packet: &PacketRecord<'_>, block: &Block) {
        let (interface, verdict) = (packet.interface, packet.verdict);
        let [links, verdicts] = &self.in_file;
        let has = |all: &[bool], id: u16| all.get(usize::from(id)) == Some(&true);
        let (has_link, has_verdict) = (has(links, interface), has(verdicts, verdict));
        if !(has_link && has_verdict) {
            let interface = (!has_link).then_some(interface);
            let verdict = (!has_verdict).then_some(verdict);
            self.undefined.note(block.offset, interface, verdict);
        }
    }

    /// What is wrong with packets of the file for lack of definitions: the place, and how many.
    pub(crate) fn undefined(&self) -> Option<(u64, String)> {
        self.undefined.problem()
    }

    /// Whether a packet is not wanted; then it is counted.
    fn leaves_out(&mut self, one: &Pending<'_>) -> bool {
        if !self.only_protected || self.protection.may_cover(&one.headers.flow_key()) {
            return false;
        }
        let packet = &one.packet;
        let count = ClassCount {
            class: one.verdict.1,
            keep: packet.keep,
            packets: 1,
            // As parts are counted.
            wire_bytes: packet.wire_len.max(packet.captured_len).into(),
            logged_bytes: packet.data.len() as u64,
        };
        add_counts(&mut self.left_out, &[count]);
        true
    }

    /// What was left out, by class and granularity.
    pub(crate) fn into_left_out(self) -> Vec<ClassCount> {
        self.left_out
    }

    /// Adds the waiting packets; a run ends before a packet that does not belong to it.
    fn take_in(
        &mut self,
        pending: &mut Vec<Pending<'_>>,
        runs: &mut impl Runs,
    ) -> Result<(), ArchiveError> {
        let hour = self.run.clock_ns() / HOUR_NS;
        let turns = |one: &Pending<'_>| one.packet.ts_ns / HOUR_NS > hour;
        if !pending.iter().any(turns) && !self.run.is_full_with(pending.len()) {
            self.run.push(pending);
            pending.clear();
            return Ok(());
        }
        for one in pending.drain(..) {
            let hour = one.packet.ts_ns / HOUR_NS > self.run.clock_ns() / HOUR_NS;
            if self.run.is_full_with(1) || (hour && self.run.len() > 0) {
                self.end_run(runs)?;
            }
            if hour {
                runs.close(self)?;
            }
            self.run.push(std::slice::from_ref(&one));
        }
        Ok(())
    }

    /// Stores what later packets refer to. The inner error is the record's.
    fn record(
        &mut self,
        record: Record<'_>,
        runs: &mut impl Runs,
    ) -> Result<Result<(), String>, ArchiveError> {
        match record {
            Record::Packet(_) | Record::Verdict(..) => {}
            Record::Context(json) => {
                let context = match Context::from_json(json) {
                    Ok(context) => context,
                    Err(problem) => return Ok(Err(problem)),
                };
                if context != *self.context {
                    if context.mode != self.context.mode {
                        // A part's files state the mode its packets were recorded in.
                        self.end_run(runs)?;
                        runs.close(self)?;
                    } else if context.protected != self.context.protected {
                        self.end_run(runs)?;
                    }
                    self.protection = Arc::new(Protection::of(&context.protected));
                    self.known.clear();
                    self.context = Arc::new(context);
                }
            }
            Record::FlowShare(share) => self.run.set_share(share),
            Record::Meta(meta) => {
                if let Meta::Interface { id, interface } = &meta {
                    note(&mut self.in_file[0], *id);
                    if self.interfaces.get(id) == Some(interface) {
                        return Ok(Ok(()));
                    }
                    Arc::make_mut(&mut self.interfaces).insert(*id, interface.clone());
                    let number = usize::from(*id);
                    if self.links.len() <= number {
                        self.links.resize(number + 1, None);
                    }
                    self.links[number] = Some(interface.link);
                }
                self.metas.push(meta);
            }
        }
        Ok(Ok(()))
    }

    fn define(&mut self, id: u16, verdict: VerdictRecord) {
        let place = usize::from(id);
        note(&mut self.in_file[1], id);
        if self.defined.len() <= place {
            self.defined.resize(place + 1, None);
        }
        let before = self.defined[place].replace(verdict);
        // Most blocks repeat the definitions of earlier ones.
        if before != self.defined[place]
            && let Some(known) = self.known.get_mut(place)
        {
            *known = None;
        }
    }

    /// Code, class and score of a verdict in the current context.
    fn look_up(&mut self, id: u16) -> (u32, u8, Option<u16>) {
        let place = usize::from(id);
        let verdict = self.defined.get(place).and_then(Option::as_ref);
        let code = self.verdicts.code(verdict, &self.context);
        let known = &self.verdicts.all[code as usize];
        let entry = (code, known.class, known.score);
        if self.known.len() <= place {
            self.known.resize(place + 1, None);
        }
        self.known[place] = Some(entry);
        entry
    }

    /// Ends the run, if there is one.
    pub(crate) fn end_run(&mut self, runs: &mut impl Runs) -> Result<(), ArchiveError> {
        if self.run.len() > 0 {
            let run = std::mem::take(&mut self.run);
            self.run.follow(&run);
            let mut next = runs.run(Ended {
                run,
                verdicts: Arc::clone(&self.verdicts.all),
                context: Arc::clone(&self.context),
                protection: Arc::clone(&self.protection),
                interfaces: Arc::clone(&self.interfaces),
            })?;
            next.follow(&self.run);
            self.run = next;
        }
        Ok(())
    }
}

/// Notes that there is one of this number.
fn note(all: &mut Vec<bool>, id: u16) {
    let place = usize::from(id);
    if all.len() <= place {
        all.resize(place.saturating_add(1), false);
    }
    all[place] = true;
}
