//! A command that plans for itself: where weights do not fit the device, it runs as `ballast plan` would have it.
//!
//! Costs are those of the profile, if one was taken, or measured roughly, once. Where all weights fit nothing is measured or
//! searched, unless they leave KV for fewer tokens than the work asks for; if that is a guess, shorter steps and weights in 12 bits
//! are tried before. Where flags say what lives where (`--percent`), or how steps are made (`--schedule`, `--batch-size` and
//! `--num-batches`, as an emitted plan does), they are followed.

use anyhow::Result;
use engine::{EngineConfig, Foresight, Hold, Planned, TooSmall, WeightShare, counted, memory};
use policy::cost::Tables;
use policy::sched::{Delegate, Schedule};
use spec::{ByTier, Split, Tier};

use super::candidate::{Candidate, Job, Lengths, Scored};
use super::rehearsals::{GENERATIONS, Rehearsals};
use super::search::{Fixed, Planner, SEARCHING, STEP_TOKENS, rescored};
use super::tell::binds;
use crate::args::{AttendOn, EngineArgs, ScheduleName};
use crate::loaded::Opened;
use crate::profile;
use crate::resolve::kv_tokens;
use crate::slow::Slow;

/// What a command knows of its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) job: Job,
    /// Whether it is known how much each generates at the most: the schedules of blocks keep room for all of it.
    pub(crate) ends: Ends,
    /// Requests at once that weights make room for, if they must: fewer than come where nobody said how many will.
    crowd: usize,
}

/// See [`Work`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Known,
    Open,
}

/// Requests that are planned for, of many more: a plan for these is one for all.
const REQUESTS: usize = 512;
/// Positions of a step that is short, and does not yet wait for weights more than for products.
const SHORT_STEP: usize = 512;
/// Sequences at once where there is hardly room for any.
const FEW: usize = 16;
/// See `rescored_for`.
const GUESSED: usize = 3;

impl Work {
    /// Exactly these requests.
    pub(crate) fn exactly(requests: usize, input: usize, output: usize) -> Work {
        let job = Job { requests, input, output, lengths: Lengths::Exact };
        Work { job, ends: Ends::Known, crowd: requests }
    }

    /// About these; `longest` is the longest sequence that there may be.
    pub(crate) fn likely(
        requests: usize,
        (input, output): (usize, usize),
        longest: usize,
        ends: Ends,
    ) -> Work {
        let input = input.clamp(1, (longest / 2).max(1));
        let output = output.clamp(1, (longest - input).max(1));
        let job = Job { requests: requests.max(1), input, output, lengths: Lengths::Likely };
        Work { job, ends, crowd: job.requests }
    }

    /// Of many likely ones some, as many as are asked for at once at the least.
    fn sample(self, at_once: usize) -> Work {
        match self.job.lengths {
            Lengths::Exact => self,
            _ => Work {
                job: Job { requests: self.job.requests.min(REQUESTS.max(at_once)), ..self.job },
                ..self
            },
        }
    }

    /// The same of whoever comes, one of them perhaps: for so many at once weights are read again and again, which who is alone
    /// waits for most.
    pub(crate) fn of_a_crowd_from(self, requests: usize) -> Work {
        Work { crowd: requests, ..self }
    }

    /// The same with so much KV in all, in tokens.
    pub(crate) fn within(self, kv_tokens: usize) -> Work {
        Work { job: Job { lengths: Lengths::LikelyWithin(kv_tokens), ..self.job }, ..self }
    }
}

/// An engine, and what is to be said of how it was chosen.
pub(crate) struct Chosen<'a> {
    pub(crate) planned: Planned<'a>,
    pub(crate) told: Option<String>,
}

/// What the costs are from.
enum Costs {
    Profile(Foresight),
    Quick(Foresight),
}

/// Plans an engine of `config` for `work`.
///
/// # Errors
/// What does not fit, or cannot be measured.
pub(crate) fn choose<'a>(
    opened: &'a Opened,
    config: EngineConfig,
    args: &EngineArgs,
    work: Work,
) -> Result<Chosen<'a>> {
    let chosen = choose_by(opened, config, args, work, &|config| costs(opened, config, args))?;
    // What was measured before says who computes with weights on the host, though flags say where they are, whether beginnings
    // are worth reading, and in which order copies of different length begin.
    let (hold, stay) = (chosen.planned.hold(), chosen.planned.config().blocks.stay());
    if chosen.told.is_some() || stay && hold.host_weight_bytes == 0 && hold.prefix_blocks.disk == 0 {
        return Ok(chosen);
    }
    let Some(profile) = profile::kept(opened, chosen.planned.config())? else { return Ok(chosen) };
    Ok(Chosen { planned: chosen.planned.foreseen(profile::foresight(profile)), ..chosen })
}

/// The same by these costs, which are asked for only if there is something to choose.
fn choose_by<'a>(
    opened: &'a Opened,
    mut config: EngineConfig,
    args: &EngineArgs,
    work: Work,
    costs: &dyn Fn(&EngineConfig) -> Result<Option<Costs>>,
) -> Result<Chosen<'a>> {
    let work = work.sample(Fixed::of(args).at_once());
    let mut first = Planned::new(&opened.checkpoint, config.clone());
    let fits = first.as_ref().is_ok_and(|first| first.fits() && !starves(first.hold(), &config, work));
    let searched = !fits && config.offload.share == WeightShare::Fitting && !told_how(args);
    if searched && work.job.lengths != Lengths::Exact && first.as_ref().is_ok_and(Planned::fits) {
        // There is room for them, and not for who may come.
        for roomier in roomier(opened, &config, args) {
            let planned = Planned::new(&opened.checkpoint, roomier.clone());
            let Some(planned) = planned.ok().filter(Planned::fits) else { continue };
            if !starves(planned.hold(), &roomier, work) {
                return Ok(Chosen { planned, told: None });
            }
            (first, config.weights) = (Ok(planned), roomier.weights);
        }
    }
    let undecided = args.schedule.attend == AttendOn::Auto && config.blocks.kv != Split::RESIDENT;
    if !searched && !undecided {
        return Ok(Chosen { planned: first?, told: None });
    }
    if first.as_ref().is_err_and(TooSmall::is_of_store) {
        // Whatever costs say. Finding them out takes a while.
        return Ok(Chosen { planned: first?, told: None });
    }
    let Some(costs) = costs(&config)? else {
        let why = "there is not even room to measure one layer";
        return own_rule(opened, (&config, args, work), first, why);
    };
    if !searched {
        return delegated(opened, config, work, costs.foresight());
    }
    let mut fixed = Fixed::of(args);
    let settled = fixed.schedule;
    if work.ends == Ends::Open && config.blocks.stay() {
        fixed.schedule.get_or_insert(Schedule::Continuous);
    }
    let (base, tables) = (config, costs.foresight().costs());
    let rehearsals = &Rehearsals::by(&tables);
    let resident_bytes = memory::resident_bytes();
    let mut planner =
        Planner { checkpoint: &opened.checkpoint, base, job: work.job, rehearsals, fixed, resident_bytes };
    let _told = Slow::told(SEARCHING);
    let mut found = planner.search(rescored_for(work))?;
    if found.is_none() && first.is_err() && planner.fixed.schedule != settled {
        // The device has no room for KV: elsewhere it is for blocks, which are better than nothing.
        planner.fixed.schedule = settled;
        found = planner.search(rescored_for(work))?;
    }
    let Some(found) = found else {
        let why = "nothing that was tried has room for such requests";
        return own_rule(opened, (&planner.base, args, work), first, why);
    };
    let settled = |candidate: &Candidate| Planned::new(&opened.checkpoint, planner.config(candidate));
    let (planned, best) = match carried_out(&found.scored, settled) {
        Ok((planned, best)) => (planned, best.clone()),
        Err(_) => match planner.next_best(&found.others, settled)? {
            Some(next) => next,
            None => {
                let why = "the process has grown beyond what was planned beside it";
                return own_rule(opened, (&planner.base, args, work), first, why);
            }
        },
    };
    let told = Some(line(&best, work.job.sample(), &costs));
    Ok(Chosen { planned: planned.foreseen(costs.foresight().clone()), told })
}

/// The same engine with more room beside its weights: by shorter steps, which prompts hardly wait for, by weights in 12 bits, which
/// batches wait for a little, and by both.
fn roomier(opened: &Opened, config: &EngineConfig, args: &EngineArgs) -> Vec<EngineConfig> {
    let shorter = |config: &EngineConfig| {
        let max_num_batched_tokens = config.max_num_batched_tokens.min(SHORT_STEP.max(config.max_num_seqs));
        EngineConfig { max_num_batched_tokens, ..config.clone() }
    };
    let less = config.clone().with_weights_kept_less(&opened.checkpoint);
    let mut all = vec![less.clone()];
    if args.max_num_batched_tokens.is_none() {
        all = vec![shorter(config), less.clone(), shorter(&less)];
    }
    all
}

/// What the engine's own rule came to; where it found no room, what it comes to of the shortest steps and the fewest sequences that a
/// search would try, if flags leave that open, and then what needs least of all that it would: so little is enough, and no less.
fn own_rule<'a>(
    opened: &'a Opened,
    (base, args, work): (&EngineConfig, &EngineArgs, Work),
    first: Result<Planned<'a>, TooSmall>,
    why: &str,
) -> Result<Chosen<'a>> {
    let fixed = Fixed::of(args);
    let told = format!("plan: none, as {why}: the engine's own rule decides");
    let mut refused = match first {
        Ok(planned) => return Ok(Chosen { planned, told: Some(told) }),
        Err(why) => why,
    };
    let of = |steps: usize, seqs: usize| format!("by steps of {steps} tokens of {seqs} sequences at most");
    if fixed.step_tokens.is_none() {
        let max_num_seqs = base.max_num_seqs.min(if fixed.at_once() > 0 { usize::MAX } else { FEW });
        let max_num_batched_tokens = STEP_TOKENS[0].max(max_num_seqs).min(base.max_num_batched_tokens);
        let short = EngineConfig { max_num_seqs, max_num_batched_tokens, ..base.clone() };
        match Planned::new(&opened.checkpoint, short) {
            Ok(planned) => {
                let told = format!("{told}, {}", of(max_num_batched_tokens, max_num_seqs));
                return Ok(Chosen { planned, told: Some(told) });
            }
            Err(why) => refused = why,
        }
    }
    let (tables, resident_bytes) = (Tables::default(), memory::needed_bytes());
    // Nothing is rehearsed.
    let rehearsals = &Rehearsals::by(&tables);
    let (checkpoint, base, job) = (&opened.checkpoint, base.clone(), work.job);
    let planner = Planner { checkpoint, base, job, rehearsals, fixed, resident_bytes };
    let least = planner.least_plan(refused)?;
    let (kv, steps) = (shares(least.homes.kv), of(least.step_tokens, least.seqs(planner.job)));
    let planned = Planned::new(&opened.checkpoint, planner.config(&least))?;
    Ok(Chosen { planned, told: Some(format!("{told}, KV {kv}, {steps}")) })
}

/// The engine of the best plan that fits. They were compared beside a smaller process: measuring and searching leave traces.
fn carried_out<P>(
    scored: &[Scored],
    plan: impl Fn(&Candidate) -> Result<P, TooSmall>,
) -> Result<(P, &Scored), TooSmall> {
    let mut refused = None;
    for scored in scored {
        match plan(&scored.candidate) {
            Ok(planned) => return Ok((planned, scored)),
            Err(why) => _ = refused.get_or_insert(why),
        }
    }
    Err(refused.expect("a search that finds nothing says so"))
}

/// Whether KV is for fewer tokens than the work asks for; than half of them where that is a guess.
fn starves(hold: &Hold, config: &EngineConfig, work: Work) -> bool {
    let job = work.job;
    let seqs = config.max_num_seqs.min(job.requests).min(work.crowd);
    let wanted = match job.lengths {
        Lengths::Exact => kv_tokens(seqs, job.input + job.output),
        Lengths::Likely => kv_tokens(seqs, job.input + job.output) / 2,
        // So much was asked for, and no more.
        Lengths::LikelyWithin(tokens) => tokens.min(kv_tokens(seqs, job.input + job.output)) / 2,
    };
    hold.kv_tokens < wanted
}

/// Blocks that are rehearsed: fewer where the requests are a guess.
fn rescored_for(work: Work) -> usize {
    if work.job.lengths == Lengths::Exact { rescored() } else { GUESSED }
}

/// Whether flags leave no choice but of where things live, which is then the engine's.
fn told_how(args: &EngineArgs) -> bool {
    let fixed = Fixed::of(args);
    fixed.schedule.is_some() && fixed.batch_size.is_some() && fixed.num_batches.is_some()
}

impl Costs {
    fn foresight(&self) -> &Foresight {
        match self {
            Costs::Profile(by) | Costs::Quick(by) => by,
        }
    }
}

fn costs(opened: &Opened, config: &EngineConfig, args: &EngineArgs) -> Result<Option<Costs>> {
    if let Some(profile) = profile::kept(opened, config)? {
        return Ok(Some(Costs::Profile(profile::foresight(profile))));
    }
    Ok(profile::rough(opened, config, args)?.map(Costs::Quick))
}

/// The engine with decodes attended where that takes less, all else as it is.
fn delegated<'a>(opened: &'a Opened, config: EngineConfig, work: Work, by: &Foresight) -> Result<Chosen<'a>> {
    let delegate = cheaper(opened, &config, work.job, &by.costs())?;
    let blocks = engine::Blocks { delegate, ..config.blocks };
    let told = match delegate {
        Delegate::Host => {
            "plan: KV away from the device is attended on the host, as that takes less (--attend auto)"
        }
        Delegate::Streamed => {
            "plan: KV away from the device is copied there, as that takes less (--attend auto)"
        }
    };
    let planned = Planned::new(&opened.checkpoint, EngineConfig { blocks, ..config })?.foreseen(by.clone());
    Ok(Chosen { planned, told: Some(told.into()) })
}

/// Where decodes attend in the shorter of two runs in virtual time; on the host where only that fits.
pub(super) fn cheaper(opened: &Opened, config: &EngineConfig, job: Job, tables: &Tables) -> Result<Delegate> {
    let rehearsals = Rehearsals::by(tables);
    let seconds = |delegate| -> Result<Option<f64>> {
        let blocks = engine::Blocks { delegate, ..config.blocks };
        let config = EngineConfig { blocks, ..config.clone() };
        let Ok(planned) = Planned::new(&opened.checkpoint, config) else { return Ok(None) };
        Ok(Some(rehearsals.parts(&planned.outline(), job, GENERATIONS)?)
            .filter(|run| run.refused == 0)
            .map(|run| run.seconds))
    };
    let (host, streamed) = (seconds(Delegate::Host)?, seconds(Delegate::Streamed)?);
    Ok(match (host, streamed) {
        (Some(host), Some(streamed)) if streamed < host => Delegate::Streamed,
        (None, Some(_)) => Delegate::Streamed,
        _ => Delegate::Host,
    })
}

/// What was chosen and why, in a line.
fn line(best: &Scored, job: Job, costs: &Costs) -> String {
    let (candidate, placement) = (&best.candidate, best.outline.placement);
    let learned = costs.foresight().correction.told();
    let learned =
        learned.map_or(String::new(), |learned| format!(", as runs since have corrected them: {learned}"));
    let costs = match costs {
        Costs::Profile(_) => format!("costs of this machine's profile{learned}"),
        Costs::Quick(_) => format!("costs measured roughly{learned}; `ballast profile` measures better"),
    };
    format!(
        "plan: weights {}, KV {}, activations {}; {}, {} x {} sequences, {} positions a batch; {} binds; {:.3} generated \
         tokens/s predicted by a rehearsal of {}, {} in, {} out ({costs})",
        shares(placement.weights),
        shares(placement.kv),
        shares(placement.hidden),
        ScheduleName::of(candidate.schedule),
        candidate.batch_size,
        candidate.num_batches,
        candidate.step_tokens,
        binds(best, None).join(", "),
        best.run.tokens_per_s(),
        counted(job.requests, "request"),
        job.input,
        job.output,
    )
}

/// `43 % device, 57 % disk`
fn shares(split: Split) -> String {
    let names = ByTier { device: "device", host: "host", disk: "disk" };
    let parts = Tier::ALL.into_iter().filter(|&tier| split.part(tier) > 0);
    let percent = |tier| 100.0 * f64::from(split.part(tier)) / f64::from(Split::WHOLE);
    let parts: Vec<String> = parts.map(|tier| format!("{:.0} % {}", percent(tier), names[tier])).collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests;
