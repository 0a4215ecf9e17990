//! One sequence as the engine knows it: its tokens, how the next one is chosen, and who waits for it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use kernels::attention::BLOCK_TOKENS;
use kernels::pick::{NoPick, PICKED, Pick};
use model::sampling::{SampleError, Sampled, Sampler, logprobs_of};
use spec::rope::Rope;
use spec::{BlockHash, Full, Produced};

use crate::front::request::{Began, Event, Failure, Finish, Request, Sink, Token};
use crate::step::hash::BlockHashes;

/// A sequence that lanes and the engine's thread share.
pub(crate) type Shared = Arc<Mutex<Sequence>>;

/// Tokens and choices of one sequence.
pub(crate) struct Sequence {
    tokens: Vec<u32>,
    prompt: usize,
    max_new: usize,
    /// The length that its rows are turned for at least.
    turned_from: usize,
    /// Positions of the prompt whose logits have been scored: those that are computed again are not told again.
    scored: usize,
    eos: Vec<u32>,
    sampler: Sampler,
    hashes: BlockHashes,
    state: State,
    /// Where a device keeps the tokens after those, which are not known here yet; the oldest first.
    coming: VecDeque<u32>,
    /// What its newest draw came to, until it is told.
    drawn: Vec<Event>,
    events: Sink,
}

/// What so many sequences with so many tokens take together before they begin.
pub fn queue_bytes(sequences: usize, tokens: usize) -> u64 {
    /// A token, and its part of a block's hash.
    const TOKEN: usize = 5;
    /// What each has beside them: 3.4 KB were measured.
    const OTHERS: usize = 4 << 10;
    tokens.saturating_mul(TOKEN).saturating_add(sequences.saturating_mul(OTHERS)) as u64
}

/// How sequences are turned.
pub(crate) struct Turns {
    pub(crate) rope: Option<Rope>,
    /// How long a sequence may become by the settings and the model. Memory may have room for less; a sequence ends earlier then,
    /// with the same tokens up to there.
    pub(crate) longest: usize,
}

impl Turns {
    /// The length that all rows of a request's sequence are turned for at least.
    fn turned_from(&self, request: &Request) -> usize {
        let prompt = request.prompt.len();
        let wanted = request.params.max_tokens.map_or(self.longest, |most| prompt + most as usize);
        // The last token is not computed with.
        let longest = wanted.min(self.longest).saturating_sub(1);
        self.rope.as_ref().map_or(prompt, |rope| rope.turned_from(prompt, longest))
    }

    /// One of the lengths that are turned as this one is, where that depends on the length.
    fn class(&self, length: usize) -> Option<usize> {
        self.rope.as_ref()?.turned_as(length)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Going,
    /// Ended by the token of this index, its last, or for want of it: the scheduler is not told yet.
    Ending(usize, Produced),
    /// Nobody wants it any more, and this is the index of the last token that was told.
    Left(usize),
    /// Steps that were under way when it ended may still bring tokens: they count nothing.
    Ended,
}

impl Sequence {
    /// A sequence that may grow by `max_new` tokens. Where it is turned by its length, only those that are turned alike can share
    /// keys. `eos`: its ends of text.
    pub(crate) fn new(
        mut request: Request,
        max_new: usize,
        turns: &Turns,
        eos: &[u32],
        events: Sink,
    ) -> Sequence {
        let (prompt, turned_from) = (request.prompt.len(), turns.turned_from(&request));
        if let Some(class) = turns.class(turned_from) {
            request.salt = request.salt.wrapping_add(class as u128);
        }
        let eos = if request.params.ends_at_eos() { eos.to_vec() } else { Vec::new() };
        Sequence {
            prompt,
            turned_from,
            sampler: Sampler::new(request.params, &request.prompt, &eos, request.seed),
            tokens: request.prompt,
            max_new,
            scored: 0,
            eos,
            hashes: BlockHashes::new(request.salt),
            state: State::Going,
            coming: VecDeque::new(),
            drawn: Vec::with_capacity(2),
            events,
        }
    }

    /// Tokens at these positions, or the places where a device keeps those that are not known yet. Steps that were planned
    /// before a sequence ended reach beyond its last token: what they compute there is of no use to anybody.
    ///
    /// # Panics
    /// If it goes on and its tokens do not reach so far.
    pub(crate) fn inputs(&self, positions: Range<usize>) -> impl Iterator<Item = u32> {
        let (known, ended) = (self.tokens.len(), self.state != State::Going);
        let all = known + self.coming.len();
        assert!(ended || positions.end <= all, "positions {positions:?} of {all} tokens");
        let place = move |at: usize| self.coming.get(at.checked_sub(known)?).map(|place| PICKED | place);
        positions.map(move |at| self.tokens.get(at).copied().or_else(|| place(at)).unwrap_or(0))
    }

    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt
    }

    /// The length that its rows are turned for at least.
    pub(crate) fn turned_from(&self) -> usize {
        self.turned_from
    }

    /// Hashes of the blocks that the prompt fills.
    pub(crate) fn prompt_hashes(&mut self) -> Vec<BlockHash> {
        self.hashes.all(&self.tokens[..self.prompt])
    }

    pub(crate) fn wants_prompt_logprobs(&self) -> bool {
        self.sampler.params().prompt_logprobs.is_some() && self.state == State::Going
    }

    /// Which of these positions are to be scored, where prompts are: those before the prompt's last that have not been yet.
    /// After a preemption a prompt is computed from its beginning again.
    pub(crate) fn unscored(&self, positions: Range<usize>) -> Range<usize> {
        if !self.wants_prompt_logprobs() {
            return 0..0;
        }
        let end = positions.end.min(self.prompt.saturating_sub(1));
        positions.start.max(self.scored).min(end)..end
    }

    /// Tells the log-probability of the prompt's token after `position`, from the logits there. Nothing happens to a sequence that
    /// has ended.
    pub(crate) fn score(&mut self, position: usize, logits: &[f32]) {
        if self.state != State::Going {
            return;
        }
        self.scored = position + 1;
        let n = self.sampler.params().prompt_logprobs.unwrap_or(0);
        match logprobs_of(logits, self.tokens[position + 1], n as usize) {
            Ok(scores) => self.tell(Event::Prompt(position + 1, scores)),
            Err(error) => self.fail(error.into()),
        }
    }

    /// Chooses the next token, which is told by [`Sequence::tell_drawn`]. Nothing happens to a sequence that has ended.
    pub(crate) fn draw(&mut self, logits: &[f32]) {
        if self.state != State::Going {
            return;
        }
        let sampled = self.sampler.sample(logits);
        self.drawn(sampled);
    }

    /// Whether it takes part in steps to some purpose.
    pub(crate) fn is_going(&self) -> bool {
        self.state == State::Going
    }

    /// What a device is told that chooses the next token itself, if it can; nothing of a sequence that has ended.
    pub(crate) fn pick(&self) -> Option<Pick> {
        self.is_going().then(|| self.sampler.for_device(self.coming.len() as u64)).flatten()
    }

    /// Whether steps may go on while its tokens are known to the device alone.
    pub(crate) fn may_wait(&self) -> bool {
        self.sampler.takes_blindly()
    }

    /// A device chooses the next token, and keeps it in this place until it [arrives](Sequence::arrived).
    pub(crate) fn awaits(&mut self, place: u32) {
        self.coming.push_back(place);
    }

    /// The oldest token that a device keeps is known. Nothing else happens to a sequence that has ended.
    pub(crate) fn arrived(&mut self, token: Result<u32, NoPick>) {
        self.coming.pop_front();
        self.picked(token);
    }

    /// A device has chosen the next token, which is told by [`Sequence::tell_drawn`]. Nothing happens to a sequence that has ended.
    pub(crate) fn picked(&mut self, token: Result<u32, NoPick>) {
        if self.state != State::Going {
            return;
        }
        if let Ok(token) = token {
            self.sampler.accept(token);
        }
        self.drawn(token.map(|token| Sampled { token, logprobs: None }).map_err(SampleError::from));
    }

    fn drawn(&mut self, sampled: Result<Sampled, SampleError>) {
        match sampled {
            Ok(sampled) => {
                self.tokens.push(sampled.token);
                self.drawn.push(Event::Token(Token {
                    id: sampled.token,
                    at: Instant::now(),
                    logprobs: sampled.logprobs,
                }));
                if let Some(finish) = self.ends_with(sampled.token) {
                    self.state = State::Ending(self.tokens.len() - 1, Produced::Last);
                    self.drawn.push(Event::Finished(finish));
                }
            }
            Err(error) => {
                let how = match error {
                    SampleError::NotFinite => Produced::Failed,
                    SampleError::NothingAllowed | SampleError::TooComplex => Produced::Stuck,
                };
                self.state = State::Ending(self.tokens.len(), how);
                self.drawn.push(Event::Failed(error.into()));
            }
        }
    }

    /// Tells what the newest draw came to. It is apart from drawing so that all tokens of a step are told at once, when
    /// the threads that draw them are done: whoever waits is woken once, and wakes up to all of them.
    pub(crate) fn tell_drawn(&mut self) {
        let Sequence { drawn, events, .. } = self;
        drawn.drain(..).for_each(events);
    }

    fn ends_with(&self, token: u32) -> Option<Finish> {
        let params = self.sampler.params();
        let generated = self.tokens.len() - self.prompt;
        let stops = self.eos.contains(&token) || params.stop_token_ids.contains(&token);
        // Before `min_tokens` it is drawn only where a format leaves nothing else.
        if stops { Some(Finish::Stop) } else { (generated >= self.max_new).then_some(Finish::Length) }
    }

    /// What came of the chunk up to position `end`, which drew the token there or none; nothing if the sequence had ended before
    /// it. Chunks are asked about in their order, and later ones may be computed already.
    pub(crate) fn produced(&mut self, drew: bool, end: usize) -> Option<Produced> {
        match self.state {
            State::Ended => None,
            State::Ending(last, _) if end < last => {
                Some(if drew { Produced::Token } else { Produced::Nothing })
            }
            State::Ending(_, how) => {
                self.state = State::Ended;
                Some(how)
            }
            State::Going if drew => Some(Produced::Token),
            State::Going => Some(Produced::Nothing),
            State::Left(last) => (drew && end <= last).then_some(Produced::Token),
        }
    }

    /// Blocks that these positions filled and that hold generated tokens.
    pub(crate) fn filled_by(&mut self, positions: Range<usize>) -> Vec<Full> {
        let block = BLOCK_TOKENS;
        let first = (positions.start / block).max(self.prompt / block);
        (first..positions.end / block)
            .map(|index| Full { index: index as u32, hash: self.hashes.of_block(&self.tokens, index) })
            .collect()
    }

    /// Its first step begins; so many tokens of its prompt were in memory.
    pub(crate) fn begin(&mut self, cached_tokens: usize) {
        if self.state == State::Going {
            self.tell(Event::Began(Began { at: Instant::now(), cached_tokens }));
        }
    }

    /// Ends it with an error, which comes after the token that was drawn before; one that has drawn its last already ends with
    /// that, though the lane that was to tell it may be gone. The scheduler is told with the next chunk that it asks about,
    /// be it the one that drew that token: who waits for it has heard already, and there may be no chunk after it.
    pub(crate) fn fail(&mut self, why: Failure) {
        self.tell_drawn();
        if self.state == State::Going {
            self.state = State::Ending(0, Produced::Failed);
            self.tell(Event::Failed(why));
        }
    }

    /// Ends it without a word: its client is gone. A token that has been told already is counted yet; one
    /// that was only drawn is neither told nor counted, unless it was the last.
    pub(crate) fn cancel(&mut self) {
        if self.state == State::Going {
            let untold = self.drawn.drain(..).count();
            self.state = State::Left(self.tokens.len().saturating_sub(1 + untold));
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state != State::Going
    }

    fn tell(&mut self, event: Event) {
        (self.events)(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::sampling::SamplingParams;
    use std::sync::mpsc::{Receiver, channel};

    fn sequence(prompt: &[u32], max_new: usize, params: SamplingParams) -> (Sequence, Receiver<Event>) {
        let (events, told) = channel();
        let request = Request { prompt: prompt.to_vec(), params, seed: 1, salt: 0 };
        let sink = Box::new(move |event| events.send(event).unwrap());
        (Sequence::new(request, max_new, &Turns { rope: None, longest: 100 }, &[2], sink), told)
    }

    fn likes(token: usize) -> Vec<f32> {
        let mut logits = vec![0.0; 8];
        logits[token] = 9.0;
        logits
    }

    #[test]
    fn it_ends_at_the_end_of_text_and_counts_nothing_after() {
        let (mut seq, told) = sequence(&[1, 3], 10, SamplingParams::greedy());
        seq.draw(&likes(5));
        assert_eq!(seq.produced(true, 2), Some(Produced::Token));
        seq.draw(&likes(2));
        seq.draw(&likes(6));
        assert!(told.try_recv().is_err(), "not before it is asked to");
        seq.tell_drawn();
        assert_eq!((seq.produced(true, 3), seq.produced(true, 4)), (Some(Produced::Last), None));
        assert_eq!(seq.tokens, [1, 3, 5, 2]);
        let told: Vec<_> = told.try_iter().collect();
        assert_eq!(told.len(), 3);
        assert_eq!(told[2], Event::Finished(Finish::Stop));
    }

    #[test]
    fn nothing_follows_an_end_among_the_scores_of_a_prompt() {
        let scored = SamplingParams { prompt_logprobs: Some(0), ..SamplingParams::greedy() };
        let (mut seq, told) = sequence(&[1, 3, 4, 5], 10, scored);
        seq.score(0, &likes(3));
        seq.score(1, &[f32::NAN; 8]);
        seq.score(2, &likes(5));
        let told: Vec<Event> = told.try_iter().collect();
        assert!(matches!(told[..], [Event::Prompt(1, _), Event::Failed(_)]), "{told:?}");
    }

    #[test]
    fn an_end_is_that_of_the_step_that_drew_it_though_the_one_before_is_told_later() {
        let (broken, forbidden) = (vec![f32::NAN; 8], vec![f32::NEG_INFINITY; 8]);
        for (last, end) in
            [(likes(2), Produced::Last), (broken, Produced::Failed), (forbidden, Produced::Stuck)]
        {
            let (mut seq, _told) = sequence(&[1, 3], 10, SamplingParams::greedy());
            [&likes(5), &last].into_iter().for_each(|logits| seq.draw(logits));
            let told =
                [(false, 1), (true, 2), (true, 3), (true, 4)].map(|(drew, end)| seq.produced(drew, end));
            assert_eq!(told, [Some(Produced::Nothing), Some(Produced::Token), Some(end), None]);
        }
    }

    #[test]
    fn it_ends_at_its_length() {
        let (mut seq, told) = sequence(&[1], 1, SamplingParams::greedy());
        seq.draw(&likes(5));
        seq.tell_drawn();
        assert_eq!(told.try_iter().last(), Some(Event::Finished(Finish::Length)));
    }

    #[test]
    fn senseless_logits_fail_the_sequence_only() {
        let (mut seq, told) = sequence(&[1], 4, SamplingParams::greedy());
        seq.draw(&[f32::NAN; 8]);
        seq.tell_drawn();
        assert_eq!(seq.produced(true, 1), Some(Produced::Failed));
        assert!(matches!(told.try_iter().last(), Some(Event::Failed(Failure::Sample(_)))));
    }

    #[test]
    fn an_error_comes_after_the_token_that_was_drawn_before_it() {
        let (mut seq, told) = sequence(&[1], 4, SamplingParams::greedy());
        seq.draw(&likes(5));
        seq.fail(Failure::Sample(SampleError::NotFinite));
        seq.tell_drawn();
        let told: Vec<_> = told.try_iter().collect();
        assert!(matches!(&told[..], [Event::Token(token), Event::Failed(_)] if token.id == 5), "{told:?}");
    }

    #[test]
    fn an_error_after_a_draw_ends_it_with_the_chunk_that_drew() {
        let (mut seq, _told) = sequence(&[1, 3], 4, SamplingParams::greedy());
        seq.draw(&likes(5));
        seq.fail(Failure::Drive("full".into()));
        assert_eq!([2, 3].map(|end| seq.produced(true, end)), [Some(Produced::Failed), None]);
    }

    #[test]
    fn a_last_token_that_nobody_told_is_told_where_an_error_would_be() {
        let (mut seq, told) = sequence(&[1], 4, SamplingParams::greedy());
        seq.draw(&likes(2));
        seq.fail(Failure::Engine("a lane panicked".into()));
        let told: Vec<_> = told.try_iter().collect();
        assert!(matches!(&told[..], [Event::Token(_), Event::Finished(Finish::Stop)]), "{told:?}");
    }

    #[test]
    fn a_token_that_was_drawn_when_its_client_left_is_neither_told_nor_counted() {
        let (mut seq, told) = sequence(&[1], 4, SamplingParams::greedy());
        seq.draw(&likes(5));
        seq.cancel();
        seq.tell_drawn();
        assert_eq!((seq.produced(true, 1), told.try_iter().count()), (None, 0));
        // What was told before counts, though the step that drew it ends after.
        let (mut seq, told) = sequence(&[1], 4, SamplingParams::greedy());
        seq.draw(&likes(5));
        seq.tell_drawn();
        seq.draw(&likes(6));
        seq.cancel();
        seq.tell_drawn();
        let counted = [seq.produced(true, 1), seq.produced(true, 2)];
        assert_eq!((counted, told.try_iter().count()), ([Some(Produced::Token), None], 1));
        // The last one was as good as told: both count it.
        let (mut seq, told) = sequence(&[1], 1, SamplingParams::greedy());
        seq.draw(&likes(5));
        seq.cancel();
        seq.tell_drawn();
        assert_eq!((seq.produced(true, 1), told.try_iter().count()), (Some(Produced::Last), 2));
    }

    #[test]
    fn an_end_that_was_drawn_before_min_tokens_had_no_alternative() {
        let (mut seq, told) = sequence(&[1], 9, SamplingParams { min_tokens: 5, ..SamplingParams::greedy() });
        seq.picked(Ok(2));
        seq.tell_drawn();
        assert_eq!(told.try_iter().last(), Some(Event::Finished(Finish::Stop)));
    }

    #[test]
    fn only_blocks_with_generated_tokens_are_told() {
        let (mut seq, _told) =
            sequence(&[7; 40], 100, SamplingParams { ignore_eos: true, ..SamplingParams::greedy() });
        for _ in 0..30 {
            seq.draw(&likes(5));
        }
        assert_eq!(seq.filled_by(0..40).len(), 0);
        assert_eq!(seq.filled_by(63..64).iter().map(|f| f.index).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn tokens_that_a_device_keeps_are_named_by_their_places_until_they_arrive() {
        let (mut seq, told) =
            sequence(&[1, 3], 10, SamplingParams { min_tokens: 2, ..SamplingParams::greedy() });
        let masked = |seq: &Sequence| seq.pick().unwrap().edits.len();
        assert_eq!(masked(&seq), 1);
        seq.awaits(70);
        seq.awaits(80);
        // The third may end it, though nobody knows the first two.
        assert_eq!(masked(&seq), 0);
        assert_eq!(seq.inputs(1..4).collect::<Vec<_>>(), [3, PICKED | 70, PICKED | 80]);
        seq.arrived(Ok(5));
        assert_eq!(seq.inputs(2..4).collect::<Vec<_>>(), [5, PICKED | 80]);
        seq.arrived(Ok(2));
        seq.tell_drawn();
        assert_eq!(told.try_iter().last(), Some(Event::Finished(Finish::Stop)));
        // A step was under way: what it picked counts nothing.
        seq.awaits(90);
        seq.arrived(Ok(6));
        assert_eq!((seq.tokens.as_slice(), seq.pick()), (&[1, 3, 5, 2][..], None));
    }
}
