//! Scripted stories: what the scheduler is told, and below each line what it answers.
//!
//! ```text
//! > limits blocks=8 tokens=64 seqs=4 queue=9 depth=1 host=0 pieces=64 gather=0 schedule=zigzag batches=1 per=99
//! > limits sliding=1 behind=32              (layers in two groups, of which one keeps 32 positions before those it computes)
//! > arrive 0 prompt=40 new=3 topic=a      (topic: a common beginning; without one nothing is shared)
//! > next                                  step 0: 0[0..40]* +0,1      (* samples, + new blocks)
//!                                         step 0: 0[0..40]* | 1@Host[0..9]*   (two batches; 1 lives on the host)
//! > done 0 last=0                         every chunk that samples drew a token; for 0 the last one
//! > done 0 gone=0                         nothing is told of 0, which was cancelled before it drew
//! > cancel 0
//! > preempted                             0 moved, 1 computed again; of 2+0+0+0+0+0+0+0 that ended: 1
//! ```

use policy::sched::{BlockConfig, Fcfs, FcfsConfig, Next, Preempt, Schedule, Scheduler};
use spec::{
    BlockHash, BlockId, ByTier, Chunk, Done, KvGroups, Move, Nanos, Outcome, Piece, PrefixUse, Produced,
    Request, Sampling, SeqId, Step, StepId, Tier, Tokens,
};
use std::collections::BTreeMap;
use std::fmt::Write;

struct Story {
    scheduler: Fcfs,
    steps: BTreeMap<StepId, Step>,
    now: Nanos,
}

/// The words after a command: `name=value`, or bare.
struct Words<'a>(Vec<&'a str>);

impl Words<'_> {
    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    fn number(&self, name: &str, otherwise: u32) -> u32 {
        self.value(name).map_or(otherwise, |value| value.parse().expect("a number"))
    }

    fn id(&self) -> u64 {
        self.0[0].parse().expect("a name is a number")
    }
}

fn limits(words: &Words<'_>) -> FcfsConfig {
    let host = words.number("host", 0);
    let (tokens, depth) = (words.number("tokens", 64), words.number("depth", 1));
    let (sliding, behind) = (words.number("sliding", 0) as usize, Tokens(words.number("behind", 0)));
    let ahead = if sliding > 0 { Tokens(tokens * depth) } else { Tokens::ZERO };
    FcfsConfig {
        max_num_batched_tokens: Tokens(tokens),
        max_num_seqs: words.number("seqs", 4) as usize,
        max_queue: words.number("queue", 9) as usize,
        depth: depth as usize,
        groups: KvGroups { full: 1, sliding, behind, ahead },
        blocks: ByTier { device: words.number("blocks", 8), host, disk: 0 },
        preempt: if host > 0 { Preempt::Swap } else { Preempt::Recompute },
        max_move_blocks: words.number("pieces", 64) as usize,
        gather: Nanos(u64::from(words.number("gather", 0))),
        block: BlockConfig {
            schedule: match words.value("schedule") {
                None => Schedule::Continuous,
                Some("zigzag") => Schedule::Zigzag,
                Some("diagonal") => Schedule::Diagonal,
                Some(other) => panic!("no such schedule: {other}"),
            },
            batches: words.number("batches", 1) as usize,
            batch_seqs: words.number("per", 99) as usize,
            kv_slot_tokens: 4096,
            ..BlockConfig::default()
        },
        ..FcfsConfig::default()
    }
}

fn request(words: &Words<'_>, now: Nanos) -> Request {
    let (prompt, max_new) = (Tokens(words.number("prompt", 1)), Tokens(words.number("new", 1)));
    let topic = words.value("topic").map(|topic| u128::from(topic.as_bytes()[0]));
    let hashes =
        (0..prompt.full_blocks()).filter_map(|i| Some(BlockHash(topic? << 64 | i as u128))).collect();
    Request { id: SeqId(words.id()), arrival: now, prompt, max_new, hashes, prefix: PrefixUse::Allowed }
}

impl Story {
    fn command(&mut self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let command = words.next().expect("a command");
        let words = Words(words.collect());
        self.now += Nanos(1);
        match command {
            "limits" => self.scheduler = Fcfs::new(limits(&words)),
            "arrive" => self.scheduler.arrive(self.now, request(&words, self.now)),
            "cancel" => self.scheduler.cancel(self.now, SeqId(words.id())),
            "done" => self.scheduler.complete(self.now, &self.done(&words)),
            "next" => return self.next(),
            "preempted" => return self.preempted(),
            other => panic!("no such command: {other}"),
        }
        self.scheduler.check();
        String::new()
    }

    fn preempted(&self) -> String {
        let preempted = self.scheduler.preempted();
        let recomputed: u64 = Tier::ALL.into_iter().map(|tier| preempted.recomputed[tier]).sum();
        let ended: Vec<_> = preempted.by_sequence.iter().map(u64::to_string).collect();
        format!(
            "{} moved, {recomputed} computed again; of {} that ended: {}\n",
            preempted.swapped,
            ended.join("+"),
            preempted.of_sequences
        )
    }

    fn done(&self, words: &Words<'_>) -> Done {
        let named = |which| words.value(which).map(|seq| SeqId(seq.parse().expect("a name is a number")));
        let (last, gone) = (named("last"), named("gone"));
        let step = &self.steps[&StepId(words.id())];
        let outcome = |chunk: &Chunk| Outcome {
            seq: chunk.seq,
            produced: match chunk.sample {
                Sampling::Skip => Produced::Nothing,
                Sampling::Sample if last == Some(chunk.seq) => Produced::Last,
                Sampling::Sample => Produced::Token,
            },
            full: Vec::new(),
        };
        Done::of(step.id, step.chunks().filter(|chunk| gone != Some(chunk.seq)).map(outcome).collect())
    }

    fn next(&mut self) -> String {
        let next = self.scheduler.next(self.now);
        self.scheduler.check();
        match next {
            Next::Wait(None) => "wait\n".into(),
            Next::Wait(Some(until)) => format!("wait {} more\n", (until - self.now).0),
            Next::Refuse(seq, why) => format!("refuse {seq}: {why}\n"),
            Next::Run(step) => {
                let text = show(&step);
                self.steps.insert(step.id, step);
                text
            }
        }
    }
}

fn show(step: &Step) -> String {
    let mut text = format!("step {}:", step.id);
    step.release.iter().for_each(|seq| write!(text, " release {seq}").expect("a string takes all"));
    step.moves.iter().for_each(|m| text += &show_move(m));
    let batch = |chunks: &Vec<Chunk>| chunks.iter().map(show_chunk).collect::<String>();
    let batches: Vec<_> = step.batches.iter().map(batch).collect();
    text + &batches.join(" |") + "\n"
}

fn show_move(m: &Move) -> String {
    let pairs: Vec<_> = m.blocks.iter().map(|(from, to)| format!("{from}>{to}")).collect();
    let more = if m.piece == Piece::More { " ..." } else { "" };
    format!(" move {} {:?}-{:?} {}{more}", m.seq, m.from, m.to, pairs.join(","))
}

fn show_chunk(chunk: &Chunk) -> String {
    let blocks: Vec<_> = chunk.new_blocks.iter().map(BlockId::to_string).collect();
    let plus = if blocks.is_empty() { String::new() } else { format!(" +{}", blocks.join(",")) };
    let star = if chunk.sample == Sampling::Sample { "*" } else { "" };
    let home = if chunk.home == Tier::Device { String::new() } else { format!("@{:?}", chunk.home) };
    format!(" {}{home}[{}..{}]{star}{plus}", chunk.seq, chunk.span.start.0, chunk.span.end().0)
}

/// Plays the commands of a story, which must answer what it says.
#[track_caller]
pub(crate) fn check(story: &str) {
    let lines = || story.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut play =
        Story { scheduler: Fcfs::new(FcfsConfig::default()), steps: BTreeMap::new(), now: Nanos(0) };
    let mut played = String::new();
    for line in lines() {
        if let Some(command) = line.strip_prefix("> ") {
            played += &format!("{line}\n{}", play.command(command));
        }
    }
    let told: String = lines().map(|line| format!("{line}\n")).collect();
    assert!(played == told, "\n--- played ---\n{played}\n--- told ---\n{told}");
}
