//! What is known of every sequence, kept once: its blocks, how far it is planned and how far it is done.

use super::Hit;
use spec::{
    BlockHash, BlockId, KvGroups, Move, Nanos, Piece, PrefixUse, Request, Sampling, SeqId, Span, StepId,
    Tier, Tokens,
};
use std::collections::{BTreeMap, VecDeque};

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Holds no KV: new, or preempted by recomputation.
    Waiting,
    /// Holds KV and takes part in steps.
    Running,
    /// On its way to `to`, or at rest there when every piece is planned.
    Moving {
        /// Where it goes.
        to: Tier,
    },
}

/// One sequence.
#[derive(Debug)]
pub struct Sequence {
    /// As it came.
    pub request: Request,
    /// Where it stands.
    pub state: State,
    /// Where its blocks are.
    pub home: Tier,
    groups: KvGroups,
    /// Numbers of blocks that it has, from the first position on, and how many of these sliding groups have passed.
    numbers: usize,
    passed: usize,
    /// Blocks of its full groups, in order of positions. While it moves, those before `moved` are given back already.
    full: Vec<BlockId>,
    /// Those of its sliding groups that are not passed.
    sliding: VecDeque<BlockId>,
    /// Its blocks where it moves to.
    pub target: Vec<BlockId>,
    /// How many of them are in moves that were planned.
    pub moved: usize,
    /// Positions that are in steps started.
    pub planned: Tokens,
    /// Positions whose steps are done.
    pub done: Tokens,
    /// Tokens that steps started will have drawn.
    pub sampled: Tokens,
    /// Tokens that steps done have drawn.
    pub generated: Tokens,
    /// Steps in flight that compute some of it.
    pub in_flight: u32,
    /// It is not wanted any more, and goes when no step in flight has it. None that begins does.
    pub leaving: bool,
    /// The newest step that computes some of it.
    pub newest: Option<StepId>,
    /// How often it gave up its blocks.
    pub preemptions: u32,
    /// Blocks of its prompt that were brought up from the host for it.
    pub promoted: usize,
    /// Blocks of its prompt that the drive was asked for since it waits.
    pub fetches: usize,
    /// Those of them that are on their way.
    pub coming: usize,
    /// Blocks that came from the drive for it.
    pub fetched: usize,
    /// Whether the executor keeps a table for it, which a release must drop.
    pub introduced: bool,
    /// Hashes of its blocks that are known, from the first on.
    hashes: Vec<BlockHash>,
    /// Blocks that others may begin with already.
    published: usize,
}

impl Sequence {
    fn new(mut request: Request, groups: KvGroups) -> Self {
        let mut hashes = std::mem::take(&mut request.hashes);
        hashes.truncate(request.prompt.full_blocks());
        Self {
            request,
            state: State::Waiting,
            home: Tier::Device,
            groups,
            numbers: 0,
            passed: 0,
            full: Vec::new(),
            sliding: VecDeque::new(),
            target: Vec::new(),
            moved: 0,
            planned: Tokens::ZERO,
            done: Tokens::ZERO,
            sampled: Tokens::ZERO,
            generated: Tokens::ZERO,
            in_flight: 0,
            leaving: false,
            newest: None,
            preemptions: 0,
            promoted: 0,
            fetches: 0,
            coming: 0,
            fetched: 0,
            introduced: false,
            hashes,
            published: 0,
        }
    }

    /// Its place among all: earlier ones first.
    pub fn rank(&self) -> (Nanos, SeqId) {
        (self.request.arrival, self.request.id)
    }

    /// Tokens that there are once the steps started are done; their KV can be computed by the next step.
    pub fn known(&self) -> Tokens {
        self.request.prompt + self.sampled
    }

    /// Positions that the next step can compute: none when the last token is planned already, or nobody wants it.
    pub fn wanted(&self) -> Tokens {
        let all_planned = self.sampled >= self.request.max_new;
        if all_planned || self.leaving { Tokens::ZERO } else { self.known() - self.planned }
    }

    /// Whether what it holds is given back once the steps that it is in are done.
    pub fn is_ending(&self) -> bool {
        self.in_flight > 0 && self.wanted() == Tokens::ZERO
    }

    /// Blocks that it lacks to hold `upto` positions.
    pub fn lacks(&self, upto: Tokens) -> usize {
        self.groups.count() * upto.blocks().saturating_sub(self.numbers)
    }

    /// Blocks that it will still ask for, beside those that it gives back: all of its known positions, and more to grow into,
    /// unless what it has is all that it can use.
    pub fn will_lack(&self) -> usize {
        let known = self.known().blocks().max(self.numbers);
        let grows = self.request.kv_max().blocks() > known;
        self.groups.lacks(known, self.numbers, self.passed) + if grows { self.groups.count() } else { 0 }
    }

    /// What it will lack of its known positions once it begins with what others have of them.
    pub fn needs_after(&self, hit: &Hit) -> usize {
        let passed = self.groups.passed(Tokens::of_blocks(hit.numbers)).min(hit.numbers);
        self.groups.lacks(self.known().blocks(), hit.numbers, passed)
    }

    /// Numbers of blocks that it has.
    pub fn numbers(&self) -> usize {
        self.numbers
    }

    /// Its blocks, where all layers share them.
    pub fn whole_blocks(&self) -> &[BlockId] {
        &self.full
    }

    /// Blocks that follow those that it has, in the order of a table.
    pub fn extend(&mut self, taken: &[BlockId]) {
        for (place, &block) in taken.iter().enumerate() {
            let (group, _) = self.groups.place(place, self.numbers, self.passed);
            if group < self.groups.full { self.full.push(block) } else { self.sliding.push_back(block) }
        }
        self.numbers = match self.groups.full {
            0 => self.passed + self.sliding.len() / self.groups.sliding,
            full => self.full.len() / full,
        };
    }

    /// Blocks of sliding groups that lie behind all that it will look at. It has them no more.
    pub fn pass(&mut self) -> Vec<BlockId> {
        let passed = self.groups.passed(self.done).min(self.numbers);
        let gone = passed.saturating_sub(self.passed) * self.groups.sliding;
        self.passed = self.passed.max(passed);
        self.sliding.drain(..gone).collect()
    }

    /// Hashes that it may begin with: at least one position is left to compute, so that a token can be drawn.
    pub fn reusable(&self) -> &[BlockHash] {
        let most = self.known().saturating_sub(Tokens(1)).full_blocks();
        match self.request.prefix {
            PrefixUse::Allowed => &self.hashes[..most.min(self.hashes.len())],
            PrefixUse::Forbidden => &[],
        }
    }

    /// It runs from now on and lives on `home`, with blocks there that hold its first positions.
    pub fn admit(&mut self, home: Tier, hit: &Hit) {
        assert!(self.state == State::Waiting && self.in_flight == 0, "only a sequence at rest is admitted");
        self.state = State::Running;
        self.home = home;
        self.fetches = 0;
        self.published = hit.numbers;
        self.planned = Tokens::of_blocks(hit.numbers);
        self.done = self.planned;
        self.passed = self.groups.passed(self.done);
        self.extend(&hit.blocks);
        assert_eq!(self.numbers, hit.numbers, "it begins with whole blocks");
    }

    /// The next `len` positions are in a step. When they reach the last known token, one is drawn.
    pub fn plan(&mut self, len: Tokens, step: StepId) -> (Span, Sampling) {
        let span = Span { start: self.planned, len };
        self.newest = Some(step);
        self.planned = span.end();
        self.in_flight += 1;
        self.introduced = true;
        if self.planned < self.known() {
            return (span, Sampling::Skip);
        }
        self.sampled += Tokens(1);
        (span, Sampling::Sample)
    }

    /// Its blocks are given up and its positions forgotten; it waits to be admitted anew.
    pub fn forget(&mut self) {
        self.state = State::Waiting;
        self.home = Tier::Device;
        self.full.clear();
        self.sliding.clear();
        self.target.clear();
        (self.numbers, self.passed) = (0, 0);
        (self.planned, self.done, self.moved, self.published) = (Tokens::ZERO, Tokens::ZERO, 0, 0);
    }

    /// It leaves for `to`, where `target` will hold it.
    pub fn depart(&mut self, to: Tier, target: Vec<BlockId>) {
        assert_eq!(target.len(), self.full.len(), "a block for a block");
        self.state = State::Moving { to };
        self.target = target;
        self.moved = 0;
    }

    /// Whether it lives on the host and nothing of it is under way.
    pub fn rests(&self) -> bool {
        self.state == State::Moving { to: Tier::Host } && self.home == Tier::Host
    }

    /// Blocks that are still to be moved.
    pub fn unmoved(&self) -> usize {
        self.target.len() - self.moved
    }

    /// The next piece of its move, of at most `most` blocks. With the last it lives at the target.
    pub fn move_piece(&mut self, most: usize) -> Move {
        let State::Moving { to } = self.state else { panic!("only a sequence that moves has pieces") };
        let piece = self.moved..self.target.len().min(self.moved + most);
        let blocks = piece.clone().map(|i| (self.full[i], self.target[i])).collect();
        let last = piece.end == self.target.len();
        let planned = Move {
            seq: self.request.id,
            from: self.home,
            to,
            blocks,
            piece: if last { Piece::Last } else { Piece::More },
        };
        self.moved = piece.end;
        if last {
            self.arrive(to);
        }
        planned
    }

    fn arrive(&mut self, to: Tier) {
        self.full = std::mem::take(&mut self.target);
        self.home = to;
        self.moved = 0;
        if to == Tier::Device {
            self.state = State::Running;
            self.published = 0;
        }
    }

    /// References that it holds now, by tier.
    pub fn held(&self) -> impl Iterator<Item = (Tier, BlockId)> {
        let to = if let State::Moving { to } = self.state { to } else { self.home };
        let here = self.full[self.moved..].iter().chain(&self.sliding).map(|&block| (self.home, block));
        here.chain(self.target.iter().map(move |&block| (to, block)))
    }

    /// Learns the hash of block `index`, if it is the next.
    pub fn learn(&mut self, index: usize, hash: BlockHash) {
        if index == self.hashes.len() {
            self.hashes.push(hash);
        }
    }

    /// Under which hashes others have what it began with or computed, or could.
    pub fn shared_under(&self) -> &[BlockHash] {
        match self.request.prefix {
            PrefixUse::Allowed => &self.hashes,
            PrefixUse::Forbidden => &[],
        }
    }

    /// What it has may be spoiled: nobody begins with what it computes from now on. If it has nothing, it has nothing to spoil.
    pub fn share_no_more(&mut self) {
        if self.numbers > 0 {
            self.request.prefix = PrefixUse::Forbidden;
        }
    }

    /// Blocks that became complete and can be published: their hashes and names.
    pub fn fresh(&mut self) -> Vec<(BlockHash, BlockId)> {
        let complete = self.done.full_blocks().min(self.hashes.len()).min(self.numbers);
        let running = self.state == State::Running && self.home == Tier::Device;
        let shares = running && self.request.prefix == PrefixUse::Allowed;
        let range = if shares { self.published..complete.max(self.published) } else { 0..0 };
        self.published = self.published.max(range.end);
        let this = &*self;
        let named = |number: usize| {
            let groups = (0..).zip(this.of_number(number));
            groups.filter_map(move |(group, block)| Some((this.hashes[number].of_group(group), block?)))
        };
        range.flat_map(named).collect()
    }

    /// What each group has under this number: sliding groups nothing where they have passed it.
    fn of_number(&self, number: usize) -> impl Iterator<Item = Option<BlockId>> {
        let KvGroups { full, sliding, .. } = self.groups;
        let of_full = (0..full).map(move |group| self.full.get(number * full + group).copied());
        let of_sliding = (0..sliding).map(move |group| {
            let at = number.checked_sub(self.passed)?;
            self.sliding.get(at * sliding + group).copied()
        });
        of_full.chain(of_sliding)
    }
}

/// All sequences that are neither finished nor refused, by name.
#[derive(Debug, Default)]
pub struct Table {
    groups: KvGroups,
    sequences: BTreeMap<SeqId, Sequence>,
}

impl Table {
    /// No sequences yet, of layers in these groups.
    pub fn new(groups: KvGroups) -> Table {
        Table { groups, sequences: BTreeMap::new() }
    }

    /// A new sequence.
    ///
    /// # Panics
    /// When its name is in use.
    pub fn insert(&mut self, request: Request) {
        let id = request.id;
        let before = self.sequences.insert(id, Sequence::new(request, self.groups));
        assert!(before.is_none(), "sequence {id} arrived twice");
    }

    /// The sequence of that name, unless it is finished, cancelled or unknown.
    pub fn get(&self, id: SeqId) -> Option<&Sequence> {
        self.sequences.get(&id)
    }

    /// The sequence of that name, unless it is finished, cancelled or unknown.
    pub fn get_mut(&mut self, id: SeqId) -> Option<&mut Sequence> {
        self.sequences.get_mut(&id)
    }

    /// A sequence that a queue names.
    ///
    /// # Panics
    /// When it is not there.
    pub fn live(&mut self, id: SeqId) -> &mut Sequence {
        self.sequences.get_mut(&id).unwrap_or_else(|| panic!("sequence {id} is queued but not in the table"))
    }

    /// Takes a sequence out.
    pub fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        self.sequences.remove(&id)
    }

    /// Those that share what they compute, and whose first block has this hash.
    pub fn who_began_with(&mut self, first: Option<BlockHash>) -> impl Iterator<Item = &mut Sequence> {
        let sequences = self.sequences.values_mut();
        sequences.filter(move |sequence| first.is_some() && sequence.shared_under().first() == first.as_ref())
    }

    /// Every sequence, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.values()
    }
}
