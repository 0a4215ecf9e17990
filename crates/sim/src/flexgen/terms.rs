//! The terms of a [`Mechanism`] by name, so that each can be switched by itself.

use super::mechanism::{Block, Compute, Copies, Expand, Fetch, Grain, Mechanism, Order, Quantised};

/// A term: what it is about, and the sides that it can take.
pub struct Term {
    /// As the command line has it.
    pub name: &'static str,
    /// Its sides.
    pub sides: &'static [Side],
}

/// One way in which a term can be.
pub struct Side {
    /// As the command line has it.
    pub name: &'static str,
    /// What it means.
    pub about: &'static str,
    set: fn(Mechanism) -> Mechanism,
}

const fn side(name: &'static str, about: &'static str, set: fn(Mechanism) -> Mechanism) -> Side {
    Side { name, about, set }
}

/// All of them.
pub const TERMS: [Term; 8] = [
    Term {
        name: "grain",
        sides: &[
            side("tensors", "weights placed in whole tensors, by the middle of their cumulative size", |m| {
                Mechanism { grain: Grain::WholeTensors, ..m }
            }),
            side("slices", "any share of each tensor", |m| Mechanism { grain: Grain::Slices, ..m }),
        ],
    },
    Term {
        name: "order",
        sides: &[
            side("barriers", "all streams and copy threads are waited for after every (layer, batch)", |m| {
                Mechanism { order: Order::Barriers, ..m }
            }),
            side("buffers", "each node waits for the buffers that it touches", |m| Mechanism {
                order: Order::Buffers,
                ..m
            }),
        ],
    },
    Term {
        name: "copies",
        sides: &[
            side(
                "pageable",
                "the host's KV is not pinned; copies up go through the runtime's pinned relay",
                |m| Mechanism { copies: Copies::Pageable, ..m },
            ),
            side("staged", "as pageable, staged by the driver", |m| Mechanism {
                copies: Copies::Staged,
                ..m
            }),
            side("pinned", "pools pinned once", |m| Mechanism { copies: Copies::Pinned, ..m }),
        ],
    },
    Term {
        name: "expand",
        sides: &[
            side("pass", "4-bit numbers are written out in half precision before every use", |m| Mechanism {
                expand: Expand::Pass,
                ..m
            }),
            side("fused", "4-bit numbers are expanded inside the kernels", |m| Mechanism {
                expand: Expand::Fused,
                ..m
            }),
        ],
    },
    Term {
        name: "quantised",
        sides: &[
            side("device", "a 4-bit cache is attended on the device only", |m| Mechanism {
                quantised: Quantised::DeviceOnly,
                ..m
            }),
            side("anywhere", "a 4-bit cache is attended on the CPU too", |m| Mechanism {
                quantised: Quantised::Anywhere,
                ..m
            }),
        ],
    },
    Term {
        name: "compute",
        sides: &[
            side(
                "eager",
                "scores in memory, logits of all positions, the CPU attends in single precision",
                |m| Mechanism { compute: Compute::Eager, ..m },
            ),
            side("fused", "scores on chip, logits of samples, the CPU attends at memory speed", |m| {
                Mechanism { compute: Compute::Fused, ..m }
            }),
        ],
    },
    Term {
        name: "block",
        sides: &[
            side("zigzag", "all sequences of a block enter together", |m| Mechanism {
                block: Block::ZigZag,
                ..m
            }),
            side("diagonal", "sequences enter one after the other", |m| Mechanism {
                block: Block::Diagonal,
                ..m
            }),
        ],
    },
    Term {
        name: "fetch",
        sides: &[
            side("loop", "the loop brings a sub-layer's weights", |m| Mechanism { fetch: Fetch::Loop, ..m }),
            side("hooks", "a hook of the interpreter brings each module's weights", |m| Mechanism {
                fetch: Fetch::Hooks,
                ..m
            }),
        ],
    },
];

/// A term or a side that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSuchTerm {
    /// No such name.
    #[error("there is no term `{0}`: there are {names}", names = names())]
    Term(String),
    /// It cannot be so.
    #[error("`{term}` cannot be `{side}`: it is one of {known}")]
    Side {
        /// Of which term.
        term: &'static str,
        /// What was asked for.
        side: String,
        /// What could be.
        known: String,
    },
}

fn names() -> String {
    TERMS.iter().map(|term| term.name).collect::<Vec<_>>().join(", ")
}

impl Mechanism {
    /// The same with one term on the side that is named.
    ///
    /// # Errors
    /// No term or side of that name; the message lists those that there are.
    pub fn with(self, term: &str, side: &str) -> Result<Mechanism, NoSuchTerm> {
        let found = TERMS.iter().find(|known| known.name == term);
        let found = found.ok_or_else(|| NoSuchTerm::Term(term.into()))?;
        match found.sides.iter().find(|known| known.name == side) {
            Some(side) => Ok((side.set)(self)),
            None => Err(NoSuchTerm::Side {
                term: found.name,
                side: side.into(),
                known: found.sides.iter().map(|side| side.name).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// Each term, and the side that it is on.
    pub fn sides(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let mechanism = *self;
        TERMS.iter().filter_map(move |term| {
            let side = term.sides.iter().find(|side| (side.set)(mechanism) == mechanism)?;
            Some((term.name, side.name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_lead_from_one_mechanism_to_the_other() {
        let walk = |from: Mechanism, to: Mechanism| {
            to.sides().fold(from, |mechanism, (term, side)| mechanism.with(term, side).expect("named"))
        };
        let all = [Mechanism::FLEXGEN, Mechanism::BALLAST, Mechanism::HOOKS];
        for (from, to) in all.into_iter().flat_map(|from| all.map(|to| (from, to))) {
            assert_eq!(walk(from, to), to);
            assert_eq!(to.sides().count(), TERMS.len());
        }
    }

    #[test]
    fn what_there_is_not_is_named_with_what_there_is() {
        let told = |term, side| Mechanism::FLEXGEN.with(term, side).expect_err("unknown").to_string();
        assert!(told("gran", "slices").contains("grain, order"));
        assert!(told("grain", "slice").contains("tensors, slices"));
    }
}
