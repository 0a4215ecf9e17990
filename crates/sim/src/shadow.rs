//! The shadow engine: it knows only the steps, keeps what an executor would keep, and checks every block access.
//!
//! Each slot of each block remembers which text its KV belongs to, so a read checks that exactly the tokens before it are
//! there: written, of this text, at this position, by the same group of layers. Where those look back through a window, blocks behind
//! it are nobody's as soon as the positions after them are done. A write checks that nobody else refers to the block and that no step
//! in flight, and nothing before it in its own step, still touches it for somebody else.

use crate::text::Text;
use spec::{
    BLOCK_TOKENS, BlockId, Chunk, Done, Kept, KvGroups, Move, Piece, Request, Sampling, SeqId, Step, StepId,
    Tier, Tokens,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// One life of a table: from the first chunk to the release.
type Life = u64;

/// Who has blocks that are only kept for reuse: lives begin at 1.
const NOBODY: Life = 0;

#[derive(Debug)]
struct TableOf {
    life: Life,
    tier: Tier,
    /// By group and number; none where it was passed.
    blocks: Vec<Vec<Option<BlockId>>>,
    /// Blocks that moves have filled elsewhere, until the last piece.
    arriving: Vec<(Tier, BlockId)>,
    written: Tokens,
}

impl TableOf {
    /// What a group has of these numbers.
    fn of(&self, group: usize, numbers: Range<usize>) -> impl Iterator<Item = BlockId> {
        self.blocks[group][numbers].iter().copied().flatten()
    }

    /// Numbers of blocks.
    fn len(&self) -> usize {
        self.blocks[0].len()
    }
}

#[derive(Debug)]
struct Known {
    prompt: Tokens,
    max_new: Tokens,
    sampled: Tokens,
    text: Text,
}

/// Which text stands in each slot of a block, and of which group of layers.
type Slots = [Option<(usize, u64)>; BLOCK_TOKENS.0 as usize];

/// From which block to which, and what.
type Arrival = ((Tier, BlockId), (Tier, BlockId), Slots);

#[derive(Debug, Default)]
struct Block {
    /// Which text stands in each slot, where one was written.
    slots: Slots,
    /// Lives whose table has it.
    owners: BTreeSet<Life>,
    /// Steps in flight that touch it, and for which life.
    touched: Vec<(StepId, Life)>,
}

/// Checks steps against each other; every violation panics and says what was wrong.
#[derive(Debug, Default)]
pub struct Shadow {
    groups: KvGroups,
    known: BTreeMap<SeqId, Known>,
    tables: BTreeMap<SeqId, TableOf>,
    blocks: BTreeMap<(Tier, BlockId), Block>,
    /// What each step in flight touches.
    in_flight: BTreeMap<StepId, Vec<(Tier, BlockId)>>,
    /// Which lives' positions each step in flight computes, up to where.
    computes: BTreeMap<StepId, Vec<(SeqId, Life, Tokens)>>,
    /// What steps in flight read from the drive or write to it: where, and what is there when they are done.
    arriving: BTreeMap<StepId, Vec<Arrival>>,
    lives: Life,
    newest: Option<StepId>,
}

impl Shadow {
    /// Layers are in these groups. Before the first step.
    pub fn group(&mut self, groups: KvGroups) {
        self.groups = groups;
    }

    /// A request with its text, before any step names it.
    pub fn learn(&mut self, request: &Request, text: Text) {
        let known = Known { prompt: request.prompt, max_new: request.max_new, sampled: Tokens::ZERO, text };
        self.known.insert(request.id, known);
    }

    /// A step begins: releases, then moves, then chunks.
    ///
    /// # Panics
    /// When it touches what it must not.
    pub fn start(&mut self, step: &Step) {
        assert!(
            self.newest.is_none_or(|newest| step.id > newest),
            "{} begins after {:?}",
            step.id,
            self.newest
        );
        self.newest = Some(step.id);
        step.release.iter().for_each(|&seq| self.release(seq));
        step.moves.iter().for_each(|m| self.carry(step.id, m));
        check_side_by_side(step);
        step.kept.iter().for_each(|kept| self.keep(step.id, kept));
        let mut seen = BTreeSet::new();
        for chunk in step.chunks() {
            assert!(seen.insert(chunk.seq), "{} is twice in step {}", chunk.seq, step.id);
            self.compute(step.id, chunk);
        }
    }

    /// A step is done: what it touched is free of it, and what was not lost has arrived.
    pub fn done(&mut self, done: &Done) {
        for at in self.in_flight.remove(&done.step).unwrap_or_default() {
            self.blocks.entry(at).or_default().touched.retain(|(by, _)| *by != done.step);
        }
        for (seq, life, upto) in self.computes.remove(&done.step).unwrap_or_default() {
            self.pass(seq, life, upto);
        }
        for (from, to, slots) in self.arriving.remove(&done.step).unwrap_or_default() {
            let pair = (from.1, to.1);
            let failed = |kept: &Kept| (kept.from, kept.to) == (from.0, to.0) && kept.blocks.contains(&pair);
            let lost = done.lost.iter().any(failed);
            let unreadable = lost && from.0 == Tier::Disk;
            let (at, slots) = if unreadable { (from, Slots::default()) } else { (to, slots) };
            if unreadable || !lost {
                self.blocks.entry(at).or_default().slots = slots;
            }
        }
    }

    fn release(&mut self, seq: SeqId) {
        let table = self.tables.remove(&seq).unwrap_or_else(|| panic!("{seq} is released but has no table"));
        let here = table.blocks.iter().flatten().flatten().map(|&block| (table.tier, block));
        for at in here.chain(table.arriving) {
            self.blocks.entry(at).or_default().owners.remove(&table.life);
        }
    }

    /// What sliding groups have behind the positions that are done is theirs no more.
    fn pass(&mut self, seq: SeqId, life: Life, done: Tokens) {
        let Some(table) = self.tables.get_mut(&seq).filter(|table| table.life == life) else { return };
        let passed = self.groups.passed(done).min(table.len());
        for group in &mut table.blocks[self.groups.full..] {
            for block in group[..passed].iter_mut().filter_map(Option::take) {
                self.blocks.entry((table.tier, block)).or_default().owners.remove(&life);
            }
        }
    }

    fn carry(&mut self, step: StepId, m: &Move) {
        let table = self.tables.get_mut(&m.seq).unwrap_or_else(|| panic!("{} moves but has no table", m.seq));
        assert_eq!(table.tier, m.from, "{} moves from where it is not", m.seq);
        let life = table.life;
        assert_eq!(table.blocks.len(), 1, "{} moves: all of its layers share blocks", m.seq);
        for &(from, to) in &m.blocks {
            let table = self.tables.get_mut(&m.seq).expect("just found");
            assert_eq!(
                table.blocks[0].get(table.arriving.len()),
                Some(&Some(from)),
                "{} moves block after block",
                m.seq
            );
            table.arriving.push((m.to, to));
            let source = self.touch(step, life, (m.from, from));
            source.owners.remove(&life);
            let slots = source.slots;
            self.write(step, life, (m.to, to)).slots = slots;
        }
        if m.piece == Piece::Last {
            self.settle(m.seq, m.to);
        }
    }

    /// Full blocks of no table go to another tier, into blocks that nobody has.
    fn keep(&mut self, step: StepId, kept: &Kept) {
        for &(from, to) in &kept.blocks {
            let source = self.touch(step, NOBODY, (kept.from, from));
            let slots = source.slots;
            assert!(slots.iter().all(Option::is_some), "step {step} keeps {from:?}, which is not full");
            let drive = kept.from.max(kept.to) == Tier::Disk;
            self.write(step, NOBODY, (kept.to, to)).slots = if drive { Slots::default() } else { slots };
            if drive {
                self.arriving.entry(step).or_default().push(((kept.from, from), (kept.to, to), slots));
            }
            self.blocks.entry((kept.to, to)).or_default().owners.remove(&NOBODY);
        }
    }

    /// The last piece has come: the table is where it moved to.
    fn settle(&mut self, seq: SeqId, to: Tier) {
        let table = self.tables.get_mut(&seq).expect("it moves");
        let arrived = std::mem::take(&mut table.arriving).into_iter().map(|(_, block)| Some(block)).collect();
        let left = std::mem::replace(&mut table.blocks[0], arrived);
        table.tier = to;
        assert_eq!(left.len(), table.len(), "{seq} arrives complete");
    }

    fn touch(&mut self, step: StepId, life: Life, at: (Tier, BlockId)) -> &mut Block {
        let block = self.blocks.entry(at).or_default();
        if block.touched.last() != Some(&(step, life)) {
            block.touched.push((step, life));
            self.in_flight.entry(step).or_default().push(at);
        }
        block
    }

    fn write(&mut self, step: StepId, life: Life, at: (Tier, BlockId)) -> &mut Block {
        let block = self.blocks.entry(at).or_default();
        let others = block.touched.iter().find(|(_, by)| *by != life);
        assert!(others.is_none(), "step {step} writes {at:?}, which {others:?} still touches");
        block.owners.insert(life);
        assert_eq!(block.owners.len(), 1, "step {step} writes {at:?}, which others refer to");
        self.touch(step, life, at)
    }

    fn compute(&mut self, step: StepId, chunk: &Chunk) {
        self.extend(chunk);
        let known = self.known.get_mut(&chunk.seq).unwrap_or_else(|| panic!("{} never arrived", chunk.seq));
        known.count(chunk);
        let mut text = std::mem::take(&mut known.text);
        (0..self.groups.count()).for_each(|group| self.compute_group(step, chunk, group, &mut text));
        let life = self.tables[&chunk.seq].life;
        self.computes.entry(step).or_default().push((chunk.seq, life, chunk.span.end()));
        self.known.get_mut(&chunk.seq).expect("just found").text = text;
    }

    fn compute_group(&mut self, step: StepId, chunk: &Chunk, group: usize, text: &mut Text) {
        let (start, end) = (chunk.span.start, chunk.span.end());
        let table = &self.tables[&chunk.seq];
        let blocks = table.blocks[group].clone();
        let at = |position: u32| {
            let (block, slot) = (position / BLOCK_TOKENS.0, position % BLOCK_TOKENS.0);
            let block = blocks[block as usize];
            let block = block.unwrap_or_else(|| panic!("step {step}: {} has passed {position}", chunk.seq));
            ((chunk.home, block), slot as usize)
        };
        let sliding = group >= self.groups.full;
        let (passed, behind) =
            if sliding { (self.groups.passed(start), self.groups.behind) } else { (0, start) };
        let (life, touched) = (table.life, table.of(group, passed..end.blocks()).collect::<Vec<_>>());
        for position in start.saturating_sub(behind).0..start.0 {
            let (block, slot) = at(position);
            let found = self.blocks.get(&block).and_then(|block| block.slots[slot]);
            let expected = Some((group, text.upto(position)));
            assert_eq!(found, expected, "step {step}: {} reads position {position}", chunk.seq);
        }
        for block in touched {
            self.touch(step, life, (chunk.home, block));
        }
        for position in start.0..end.0 {
            let (block, slot) = at(position);
            self.write(step, life, block).slots[slot] = Some((group, text.upto(position)));
        }
    }

    /// Appends the chunk's blocks, and checks that it begins where the one before it ended.
    fn extend(&mut self, chunk: &Chunk) {
        let (lives, groups) = (&mut self.lives, self.groups);
        let table = self.tables.entry(chunk.seq).or_insert_with(|| {
            *lives += 1;
            let written = chunk.span.start;
            let blocks = vec![Vec::new(); groups.count()];
            TableOf { life: *lives, tier: chunk.home, blocks, arriving: Vec::new(), written }
        });
        assert_eq!(table.tier, chunk.home, "{} computes where it does not live", chunk.seq);
        assert!(table.arriving.is_empty(), "{} computes while it moves", chunk.seq);
        assert_eq!(table.written, chunk.span.start, "{} leaves a gap", chunk.seq);
        assert!(chunk.span.len > Tokens::ZERO, "{} computes nothing", chunk.seq);
        table.written = chunk.span.end();
        let (first, passed) = (table.len(), groups.passed(chunk.span.start));
        for (place, block) in chunk.new_blocks.iter().enumerate() {
            let (group, number) = groups.place(place, first, passed);
            table.blocks[group].resize(number, None);
            table.blocks[group].push(Some(*block));
        }
        let upto = chunk.span.end().blocks();
        assert!(
            table.blocks.iter().all(|group| group.len() == upto),
            "{} has the blocks that it needs",
            chunk.seq
        );
        for &block in &chunk.new_blocks {
            self.blocks.entry((chunk.home, block)).or_default().owners.insert(table.life);
        }
    }
}

/// Copies of one step go in any order: none reads what another brings.
fn check_side_by_side(step: &Step) {
    let brought = |kept: &Kept| kept.blocks.iter().map(|&(_, to)| (kept.to, to)).collect::<Vec<_>>();
    let brought: BTreeSet<_> = step.kept.iter().flat_map(brought).collect();
    for kept in &step.kept {
        let read = kept.blocks.iter().map(|&(from, _)| (kept.from, from)).find(|at| brought.contains(at));
        assert_eq!(read, None, "step {} copies on what it only brings", step.id);
    }
}

impl Known {
    /// Checks that the chunk's tokens exist, and that it samples just when it reaches the last of them.
    fn count(&mut self, chunk: &Chunk) {
        let tokens = self.prompt + self.sampled;
        assert!(chunk.span.end() <= tokens, "{} computes tokens that nobody drew", chunk.seq);
        let last = chunk.span.end() == tokens;
        assert_eq!(
            last,
            chunk.sample == Sampling::Sample,
            "{} samples after the last known token",
            chunk.seq
        );
        self.sampled += Tokens(u32::from(last));
        assert!(self.sampled <= self.max_new, "{} draws more than it may", chunk.seq);
    }
}
