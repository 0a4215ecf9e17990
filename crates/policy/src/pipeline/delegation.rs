//! Who computes with weights that live on the host (FlexGen, section 4.2, computation delegation): the device, to which they
//! are copied for every pass, or the host, to which activations go down and from which a few columns come up.
//!
//! One copy serves all batches of a step, and goes beside what the device computes; the host computes batch after batch. So a
//! step of several batches has its weights copied sooner than a step of one. Row by row each batch has a copy of its own.
//! And a host beside a GPU that attends has the less time for linears: it does one after the other, while copies go on.

use spec::{Load, Nanos, Pipeline, Shape};

/// Batches that are timed: 1, 2, 4, and so on.
const SIZES: usize = 8;

/// Who computes with weights that live on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delegation {
    /// The device.
    #[default]
    Never,
    /// The host, in steps in which no batch has more tokens.
    Always {
        /// Tokens of a batch that the host has room for.
        tokens: u32,
    },
    /// The host, in steps in which that takes less.
    Cheaper(BothWays),
}

/// What one MLP takes either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BothWays {
    copy: Nanos,
    /// On the device and on the host, for 1, 2, 4 ... tokens.
    times: [[Nanos; 2]; SIZES],
    /// How many of these were timed.
    timed: usize,
    /// What the host takes meanwhile for each position that it attends, in picoseconds.
    attend_ps: u64,
}

impl BothWays {
    /// Times batches of up to `most` tokens on the device and on the host (`time` says both in this order), until the host
    /// takes longer than a copy beside the device's work. `copy`: what the weights take to the device.
    pub fn timed(copy: Nanos, most: u32, mut time: impl FnMut(u32) -> [Nanos; 2]) -> BothWays {
        let mut ways = BothWays { copy, times: [[Nanos::ZERO; 2]; SIZES], timed: 0, attend_ps: 0 };
        let sizes = (0..SIZES).map(|i| 1 << i).take_while(|&tokens| tokens <= most);
        for tokens in sizes {
            let [device, host] = time(tokens);
            if host > copy.max(device) {
                break;
            }
            ways.times[ways.timed] = [device, host];
            ways.timed += 1;
        }
        ways
    }

    /// The same of a host beside a GPU, which takes so many picoseconds for each position that it attends, beside an MLP.
    pub fn beside_attention(self, attend_ps: u64) -> BothWays {
        BothWays { attend_ps, ..self }
    }

    /// Tokens of the largest batch for which the host was the faster one.
    fn tokens(&self) -> u32 {
        (1_u32 << self.timed) >> 1
    }

    fn of(&self, load: &Load) -> [Nanos; 2] {
        self.times[load.tokens.next_power_of_two().trailing_zeros() as usize]
    }

    /// Whether the host takes less for all batches together, each of which it is the faster one for alone.
    fn wins(&self, loads: &[Load]) -> bool {
        let sum = |way: usize| loads.iter().fold(Nanos::ZERO, |sum, load| sum + self.of(load)[way]);
        let attended: u64 = loads.iter().map(|load| load.context.host).sum();
        let attends = Nanos(attended.saturating_mul(self.attend_ps) / 1000);
        attends + sum(1) <= self.copy.max(sum(0)).max(attends)
    }
}

impl Delegation {
    /// Tokens of the largest batch that the host may compute with its weights.
    pub fn tokens(&self) -> u32 {
        match self {
            Delegation::Never => 0,
            Delegation::Always { tokens } => *tokens,
            Delegation::Cheaper(ways) => ways.tokens(),
        }
    }

    /// Whether the host computes with its weights in such a step.
    pub fn takes(&self, shape: &Shape) -> bool {
        let most = self.tokens();
        if shape.loads.is_empty() || most == 0 || shape.loads.iter().any(|load| load.tokens > most) {
            return false;
        }
        match self {
            Delegation::Cheaper(ways) => shape.pipeline == Pipeline::Row || ways.wins(&shape.loads),
            Delegation::Always { .. } | Delegation::Never => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::Layout;

    fn shape(pipeline: Pipeline, batches: &[u32]) -> Shape {
        let load = |&tokens: &u32| Load { tokens, seqs: tokens, ..Load::default() };
        Shape { pipeline, layout: Layout::SINGLE, loads: batches.iter().map(load).collect(), moves: vec![] }
    }

    /// A copy takes 10, the device 1 and the host 4 for a batch of up to four tokens, and more for larger ones.
    fn ways() -> Delegation {
        let host = |tokens: u32| if tokens <= 4 { 4 } else { 11 };
        let time = |tokens| [Nanos(1), Nanos(host(tokens))];
        Delegation::Cheaper(BothWays::timed(Nanos(10), 64, time))
    }

    #[test]
    fn one_copy_serves_all_batches_of_a_step() {
        use Pipeline::{Plain, Row, Zigzag};
        let takes = |pipeline, batches: &[u32]| ways().takes(&shape(pipeline, batches));
        assert_eq!(ways().tokens(), 4);
        assert!(takes(Plain, &[4]) && !takes(Plain, &[5]) && takes(Plain, &[1]));
        assert!(takes(Zigzag, &[4, 3]) && !takes(Zigzag, &[4, 3, 1]) && !takes(Zigzag, &[1, 5]));
        assert!(takes(Row, &[4, 3, 1, 4]) && !takes(Row, &[1, 5]));
        assert!(!takes(Zigzag, &[]));
    }

    /// What is attended is as much as a copy and a half takes: the host would be late with the MLP.
    #[test]
    fn a_host_that_attends_is_given_less() {
        let time = |_| [Nanos(1), Nanos(4)];
        let alone = BothWays::timed(Nanos(10), 64, time);
        let step = |attended: u64| {
            let mut shape = shape(Pipeline::Zigzag, &[4]);
            shape.loads[0].context.host = attended;
            shape
        };
        let beside = Delegation::Cheaper(alone.beside_attention(500));
        assert!(beside.takes(&step(0)) && beside.takes(&step(12)) && !beside.takes(&step(14)));
        assert!(!beside.takes(&step(1000)), "nor where it attends for longer than a copy takes");
        assert!(Delegation::Cheaper(alone).takes(&step(1000)));
    }

    #[test]
    fn a_host_that_is_no_slower_takes_as_many_batches_as_there_are() {
        let ways = BothWays::timed(Nanos(1), 6, |tokens| [Nanos(u64::from(tokens)); 2]);
        let takes = |batches: &[u32]| Delegation::Cheaper(ways).takes(&shape(Pipeline::Zigzag, batches));
        assert_eq!(ways.tokens(), 4, "no more than there is room for, in powers of two");
        assert!(takes(&[4; 9]) && !takes(&[5; 9]));
        let never = BothWays::timed(Nanos(1), 64, |_| [Nanos(1), Nanos(2)]);
        assert_eq!(Delegation::Cheaper(never).tokens(), 0);
        assert!(!Delegation::Cheaper(never).takes(&shape(Pipeline::Plain, &[1])));
    }

    #[test]
    fn what_is_asked_for_is_done_while_there_is_room() {
        let takes = |d: Delegation, batches: &[u32]| d.takes(&shape(Pipeline::Zigzag, batches));
        let always = Delegation::Always { tokens: 6 };
        assert!(takes(always, &[6, 1, 6]) && !takes(always, &[6, 7]));
        assert!(!takes(Delegation::Never, &[1]));
    }
}
