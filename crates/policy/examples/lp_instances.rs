//! Prints the programmes that `scripts/lp_instances.py` has another solver solve.

#[path = "../tests/instances/mod.rs"]
mod instances;

fn main() {
    let programmes: Vec<_> = instances::instances()
        .into_iter()
        .filter_map(|(name, question, block)| Some((name, policy::plan::programme(&question, block)?)))
        .collect();
    println!("{}", serde_json::to_string(&programmes).expect("plain numbers"));
}
