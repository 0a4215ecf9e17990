//! `ballast plan`: what lives where, what that comes to, what binds, and what more memory would bring.

mod candidate;
mod emit;
mod least;
mod local;
mod more;
mod own;
mod published;
mod rehearsals;
mod screen;
mod search;
mod tell;

pub(crate) use own::{Chosen, Ends, Work, choose};

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use policy::cost::Dims;

use crate::args::{LoadFormat, PlanArgs};
use crate::console::Misuse;

pub(crate) fn plan(args: PlanArgs) -> Result<ExitCode> {
    if is_here(&args) {
        return local::plan(args);
    }
    if args.emit_config.is_some() || args.engine.percent.is_some() {
        bail!(Misuse(format!(
            "--emit-config and --percent are of models that are here: {} is planned for {} (see also `ballast simulate \
             flexgen --percent`)",
            args.model,
            args.scenario.hardware()
        )));
    }
    published::plan(args)
}

/// Whether the model has files; names of published models stand for their sizes.
fn is_here(args: &PlanArgs) -> bool {
    let name = args.model.as_str();
    let fetched = name == "smollm2" || (name.contains('/') && Dims::named(name).is_none());
    args.engine.load_format == LoadFormat::Dummy || fetched || Path::new(name).exists()
}

/// Electricity and rent (FlexGen, section 6.3: 2484 tokens an hour at 250 W and 0.2 a kilowatt-hour are 49,680 a dollar).
fn dollars_per_hour(args: &PlanArgs) -> Option<f64> {
    let electricity = args.watts.zip(args.kwh_price).map(|(watts, price)| watts / 1000.0 * price);
    match (electricity, args.price_per_hour) {
        (None, None) => None,
        (electricity, rent) => Some(electricity.unwrap_or(0.0) + rent.unwrap_or(0.0)),
    }
}
