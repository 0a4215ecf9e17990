//! `ballast simulate flexgen`: the paper's tables, or one cell of another.

use std::process::ExitCode;

use anyhow::{Result, bail};
use policy::plan::BlockSize;
use serde_json::Value;
use sim::flexgen::{Case, Mechanism, Overlap, Pinning, Policy, Prediction, Rates, Wanted, plan, predict};
use spec::{Placement, Tier};

use crate::args::{FlexgenArgs, Percent, PinWeight, Runtime};
use crate::console::{Misuse, show};
use crate::output_file::{self, JsonReport, OutputFile};
use crate::paper_tables::{curves, figure_1, gains, tables};
use crate::resolve::share;
use crate::scenario::{apart, fits, nothing, percent, rates, report, wanted};

pub(crate) fn flexgen(args: FlexgenArgs) -> Result<ExitCode> {
    refuse_what_is_of_one_cell(&args)?;
    output_file::apart([args.scenario.json.as_deref(), args.curves.as_deref()])?;
    let rates = rates(&args.scenario)?;
    let json = JsonReport::open(args.scenario.json.as_deref())?;
    let curve_file = args.curves.as_deref().map(OutputFile::open).transpose()?;
    let mut told = match (&args.model, args.mechanism) {
        (Some(model), _) => one(model, &args, rates, with_terms(&args, start(args.mechanism))?)?,
        (None, Runtime::Flexgen) => tables(rates, &|mechanism| with_terms(&args, mechanism))?,
        (None, Runtime::Ballast) => gains(&args.scenario, rates)?,
    };
    if args.model.is_none() {
        let found = figure_1(&args.scenario, rates, with_terms(&args, Mechanism::FLEXGEN)?)?;
        told["figure_1"] = curves(&found)?;
        if let Some(mut file) = curve_file {
            file.replace(found.svg().as_bytes())?;
        }
    }
    json.write(&told)?;
    Ok(ExitCode::SUCCESS)
}

/// Flags of a cell, where the paper's tables are asked for: those have their own.
fn refuse_what_is_of_one_cell(args: &FlexgenArgs) -> Result<()> {
    let scenario = &args.scenario;
    let of_a_cell = [
        ("--prompt-len", scenario.prompt_len.is_some()),
        ("--gen-len", scenario.gen_len.is_some()),
        ("--devices", scenario.devices.is_some()),
        ("--compress-weight", scenario.compress_weight),
        ("--compress-cache", scenario.compress_cache),
        ("--no-host-attention", scenario.no_host_attention),
        ("--no-overlap", args.no_overlap),
        ("--batch-size", args.batch_size.is_some()),
        ("--num-batches", args.num_batches.is_some()),
        ("--pin-weight", args.pin_weight.is_some()),
        ("--term", !args.term.is_empty() && args.mechanism == Runtime::Ballast),
    ];
    match of_a_cell.into_iter().find(|(_, given)| *given && args.model.is_none()) {
        Some((flag, _)) => bail!(Misuse(format!(
            "{flag} is of one cell, and the paper's tables have theirs: add --model, such as --model opt-30b"
        ))),
        None => Ok(()),
    }
}

fn start(runtime: Runtime) -> Mechanism {
    match runtime {
        Runtime::Flexgen => Mechanism::FLEXGEN,
        Runtime::Ballast => Mechanism::BALLAST,
    }
}

fn with_terms(args: &FlexgenArgs, from: Mechanism) -> Result<Mechanism> {
    let mut terms = args.term.iter();
    Ok(terms.try_fold(from, |mechanism, (term, side)| mechanism.with(term, side))?)
}

fn one(model: &str, args: &FlexgenArgs, rates: Rates, mechanism: Mechanism) -> Result<Value> {
    if args.pin_weight.is_some() && args.mechanism == Runtime::Ballast {
        bail!(Misuse(
            "--pin-weight is a switch of FlexGen's: with --mechanism ballast it changes nothing".into()
        ));
    }
    let block = args.batch_size.zip(args.num_batches);
    let block = block.map(|(batch_size, num_batches)| BlockSize { batch_size, num_batches });
    let overlap = if args.no_overlap { Overlap::Off } else { Overlap::On };
    let pinning = match args.pin_weight {
        None | Some(PinWeight::Auto) => Pinning::Auto,
        Some(PinWeight::On) => Pinning::On,
        Some(PinWeight::Off) => Pinning::Off,
    };
    let wanted = Wanted { block, overlap, pinning, ..wanted(model, &args.scenario)? };
    let (case, prediction) = match &args.percent {
        Some(percent) => {
            let case = given(&wanted, percent)?;
            fits(&case, rates, mechanism)?;
            (case, predict(&case, rates, mechanism))
        }
        None => match plan(&wanted, rates, mechanism) {
            Some(planned) => (planned.case, planned.prediction),
            None => return Err(nothing(model, &wanted, rates, mechanism)),
        },
    };
    say(model, &case, &prediction)?;
    Ok(report(model, &args.scenario, &case, &prediction, mechanism))
}

fn say(model: &str, case: &Case, prediction: &Prediction) -> Result<()> {
    let Policy { batch_size, num_batches, placement: Placement { weights, kv, hidden }, .. } = case.policy;
    let shares = [weights, kv, hidden].map(|split| {
        let of = |tier| percent(split, tier);
        format!("{:.0}/{:.0}/{:.0}", of(Tier::Device), of(Tier::Host), of(Tier::Disk))
    });
    let rate = prediction.generated_tokens_per_s;
    if apart(prediction) {
        show!(
            "{model}: {rate:.3} generated tokens/s, {:.3} decoding; prefill {:.0} s, decode {:.0} s a block",
            prediction.decode_tokens_per_s,
            prediction.prefill.total,
            prediction.decode.total
        )?;
    } else {
        show!(
            "{model}: {rate:.3} generated tokens/s; {:.0} s a block, prompts among its steps",
            prediction.decode.total
        )?;
    }
    show!(
        "block {batch_size}x{num_batches}; percent on device/host/disk: weights {}, KV {}, activations {}",
        shares[0],
        shares[1],
        shares[2]
    )
}

/// A policy as FlexGen's `--percent` writes it.
fn given(wanted: &Wanted, percent: &[Percent]) -> Result<Case> {
    let Some(block) = wanted.block else { bail!("--percent needs --batch-size and --num-batches") };
    Ok(wanted.case(
        block,
        Placement {
            weights: share(percent, "weights", 0)?,
            kv: share(percent, "KV", 1)?,
            hidden: share(percent, "activations", 2)?,
        },
    ))
}
