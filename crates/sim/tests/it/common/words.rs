//! Programs as text.

use spec::{Op, Part, Program, Tensor, Tier};

fn word(op: &Op) -> String {
    let at = |tier: Tier| format!("{tier:?}").to_lowercase();
    match *op {
        Op::Embed { batch } => format!("embed{batch}"),
        Op::Qkv { layer, batch } => format!("qkv{layer}.{batch}"),
        Op::Attend { layer, batch, on } => format!("att{layer}.{batch}@{}", at(on)),
        Op::OutProj { layer, batch } => format!("out{layer}.{batch}"),
        Op::Mlp { layer, batch } => format!("mlp{layer}.{batch}"),
        Op::Head { batch } => format!("head{batch}"),
        Op::Sample { batch } => format!("sample{batch}"),
        Op::LoadWeights { part: Part::Attention(layer), .. } => format!("A{layer}"),
        Op::LoadWeights { part: Part::Mlp(layer), .. } => format!("M{layer}"),
        Op::LoadWeights { .. } => "H".into(),
        Op::CopyKv { layer, batch, from, to } => format!("kv{layer}.{batch}:{}>{}", at(from), at(to)),
        Op::Choose { layer, batch, on } => format!("choose{layer}.{batch}@{}", at(on)),
        Op::CopyChosen { layer, batch, from, to } => format!("v{layer}.{batch}:{}>{}", at(from), at(to)),
        Op::MoveHidden { what: Tensor::Hidden, batch, from, to } => {
            format!("h{batch}:{}>{}", at(from), at(to))
        }
        Op::MoveHidden { what: Tensor::Qkv, batch, .. } => format!("q{batch}"),
        Op::MoveHidden { batch, .. } => format!("a{batch}"),
        Op::MoveKv { layer, .. } => format!("move{layer}"),
        Op::SendRecv { what: Tensor::Tokens, .. } => "return".into(),
        Op::SendRecv { .. } => "send".into(),
        Op::AllReduce { .. } => "sum".into(),
    }
}

/// Its ops, each a short word.
pub(crate) fn words(program: &Program) -> String {
    program.nodes().iter().map(|node| word(&node.op)).collect::<Vec<_>>().join(" ")
}
