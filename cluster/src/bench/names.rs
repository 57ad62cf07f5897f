//! Names of operations in a profile: operations of the same name are told as one.

use paceline_compute::device::OperationTime;
use paceline_compute::program::{Op, Program, Recorded, Weight};
use paceline_gguf::TensorType;

use super::cost::Costs;

/// The operation that does most of the work, and those that the device runs with it.
pub(super) fn of(program: &Program, operation: &OperationTime, costs: &Costs<'_>) -> String {
    let main = one(program, &program.ops[operation.main], costs);
    let others = operation.operations.clone().filter(|index| *index != operation.main);
    let mut others: Vec<String> = others.map(|index| one(program, &program.ops[index], costs)).collect();
    others.dedup();
    if others.is_empty() { main } else { format!("{main} (with {})", others.join(", ")) }
}

/// What kind of operation it is, and of which tensors.
fn one(program: &Program, recorded: &Recorded, costs: &Costs<'_>) -> String {
    let tensors = |weights: &[Weight]| tensors(program, weights, costs);
    match &recorded.op {
        Op::Embed { .. } => "embed".to_owned(),
        Op::RopeTable { .. } => "rope table".to_owned(),
        Op::Norm { .. } => "norm".to_owned(),
        Op::AddEmbedding { .. } => "add embedding".to_owned(),
        Op::LayerNorm { .. } => "layer norm".to_owned(),
        Op::Gelu { .. } => "gelu".to_owned(),
        Op::Tanh { .. } => "tanh".to_owned(),
        Op::Linear { products, .. } => {
            let weights: Vec<Weight> = products.iter().map(|product| product.weight).collect();
            let is_head = products.iter().any(|product| Some(product.output) == program.logits);
            format!("{} {}", if is_head { "head" } else { "linear" }, tensors(&weights))
        }
        Op::StoreKeysValues { .. } => "store keys, values".to_owned(),
        Op::Attention { .. } => "attention".to_owned(),
        Op::Convolve { .. } => "convolve".to_owned(),
        Op::DeltaRule { .. } => "delta rule".to_owned(),
        Op::GatedNorm { .. } => "gated norm".to_owned(),
        Op::SwiGlu { .. } => "swiglu".to_owned(),
        Op::Route { .. } => "route".to_owned(),
        Op::Experts { gate, up, down, .. } => format!("experts {}", tensors(&[*gate, *up, *down])),
        Op::AddGated { .. } => "add gated".to_owned(),
        Op::AddBias { .. } => "add bias".to_owned(),
        Op::Join { .. } => "join".to_owned(),
        Op::Split { .. } => "split".to_owned(),
        Op::Gather { .. } => "gather".to_owned(),
    }
}

/// `ffn_gate+ffn_up Q4_K`: tensors without their layer, and the types that they have.
fn tensors(program: &Program, weights: &[Weight], costs: &Costs<'_>) -> String {
    let (mut names, mut kinds) = (Vec::new(), Vec::new());
    for weight in weights {
        let tensor = program.weights[weight.0 as usize].tensor.trim_end_matches(".weight");
        names.push(tensor.rsplit('.').next().unwrap_or(tensor));
        let kind = costs.kind(*weight).map_or("?", TensorType::name);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    format!("{} {}", names.join("+"), kinds.join(","))
}
