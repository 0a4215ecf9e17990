//! Tokens that a device takes from logits itself, so that the logits need not travel: what it is told of each row.
//!
//! What the numbers mean, and in which order they are applied, is the sampler's: `model::sampling`.

/// Ids from here on name places of tokens that a device has picked and keeps, the first of them 0.
pub const PICKED: u32 = 1 << 31;

/// Tokens that a device is asked to take: they may be embedded before anybody on the host knows them.
#[derive(Debug, PartialEq, Eq)]
pub struct Picked {
    /// The place of the first; the others follow.
    pub first: u32,
    /// How many.
    pub rows: usize,
    /// By which the device knows their way to the host.
    pub fetches: Vec<u64>,
}

/// How the token of one row is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// What becomes of single logits first; those of one id follow one another, in the order in which they are applied.
    pub edits: Vec<Edit>,
    /// Divides positive logits of repeated tokens, and multiplies others.
    pub repetition: f32,
    /// Taken from a logit for each time that its token was generated.
    pub frequency: f32,
    /// Taken from a logit if its token was generated.
    pub presence: f32,
    /// How one is drawn; the largest is taken, if absent.
    pub draw: Option<Draw>,
}

/// A draw among a row's tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Uniform in `[0, 1)`.
    pub u: f64,
    /// The inverse of the temperature.
    pub scale: f32,
    /// Scaled logits, relative to the largest, count from here on.
    pub floor: f32,
    /// How many count.
    pub top_k: Option<u32>,
    /// Which share of the mass counts; 1 is all.
    pub top_p: f32,
}

/// A change of one logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edit {
    /// Of which token. Ids beyond the row are ignored.
    pub id: u32,
    /// What.
    pub change: Change,
}

/// What changes a logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// The token may not come.
    Mask,
    /// Added.
    Add(f32),
    /// The token was in the prompt or generated.
    Repeated,
    /// The token was generated so many times.
    Counted(u32),
}

/// Why no token can be taken from a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPick {
    /// NaN or infinity is among the logits.
    NotFinite,
    /// Every token is masked.
    NothingAllowed,
}
