//! Ops in a few words. The first word is the kind, which the colour of a bar follows.

use spec::{Op, Part, Tensor, Tier};

/// What an op is, for people: `attend 3 batch 0 on host`.
pub fn label(op: &Op) -> String {
    match *op {
        Op::Embed { batch } => format!("embed batch {batch}"),
        Op::Qkv { layer, batch } => format!("qkv {layer} batch {batch}"),
        Op::Attend { layer, batch, on } => format!("attend {layer} batch {batch} on {}", tier(on)),
        Op::OutProj { layer, batch } => format!("out {layer} batch {batch}"),
        Op::Mlp { layer, batch } => format!("mlp {layer} batch {batch}"),
        Op::Head { batch } => format!("head batch {batch}"),
        Op::Sample { batch } => format!("sample batch {batch}"),
        Op::LoadWeights { part, from, to } => format!("weights {} {}", of(part), hop(from, to)),
        Op::MoveKv { layer, from, to } => format!("move KV {layer} {}", hop(from, to)),
        Op::CopyKv { layer, batch, from, to } => format!("kv {layer} batch {batch} {}", hop(from, to)),
        Op::Choose { layer, batch, on } => format!("choose {layer} batch {batch} on {}", tier(on)),
        Op::CopyChosen { layer, batch, from, to } => {
            format!("kv {layer} batch {batch} chosen {}", hop(from, to))
        }
        Op::MoveHidden { what, batch, from, to } => {
            format!("{} batch {batch} {}", name(what), hop(from, to))
        }
        Op::AllReduce { what, batch } => format!("reduce {} batch {batch}", name(what)),
        Op::SendRecv { what, batch, to } => format!("send {} batch {batch} to rank {to}", name(what)),
    }
}

fn of(part: Part) -> String {
    match part {
        Part::Embed => "of the embedding".into(),
        Part::Attention(layer) => format!("of attention {layer}"),
        Part::Mlp(layer) => format!("of MLP {layer}"),
        Part::Head => "of the head".into(),
    }
}

fn name(what: Tensor) -> &'static str {
    match what {
        Tensor::Hidden => "hidden",
        Tensor::Qkv => "queries",
        Tensor::Attended => "attended",
        Tensor::Logits => "logits",
        Tensor::Tokens => "tokens",
    }
}

fn hop(from: Tier, to: Tier) -> String {
    format!("from {} to {}", tier(from), tier(to))
}

fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "device",
        Tier::Host => "host",
        Tier::Disk => "disk",
    }
}
