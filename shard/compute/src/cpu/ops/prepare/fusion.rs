//! Which operations of a program are fused.

use super::super::convolve::Convolve;
use super::super::delta_rule::DeltaRule;
use super::super::elementwise::{AddGated, SwiGlu};
use super::super::experts::{Experts, Sizes};
use super::super::fused::{DeltaNet, Products, RoutedExperts, Then};
use super::super::linear::Linear;
use super::super::norm::{GatedNorm, Norm};
use super::super::route::Route;
use super::super::{Fused, Operation};
use super::Preparation;
use crate::program::{Buffer, Op, Product, Recorded};

impl Preparation<'_> {
    /// All operations of the program, which were checked, with as few barriers as we know how.
    pub(super) fn fuse(&self) -> Vec<Fused> {
        let mut all = Vec::new();
        for entry in self.program.entries() {
            let mut first = entry.start;
            while first < entry.end {
                let rest = &self.program.ops[first..entry.end];
                let (operation, count, main) = self
                    .products(rest)
                    .or_else(|| self.delta_net(rest))
                    .or_else(|| self.routed_experts(rest))
                    .unwrap_or_else(|| (self.ready(&rest[0].op), 1, 0));
                all.push(Fused { operation, main: first + main, operations: first..first + count });
                first += count;
            }
        }
        all
    }

    /// Products, with the norm before and the operation after them if these can be fused.
    fn products(&self, ops: &[Recorded]) -> Option<(Box<dyn Operation>, usize, usize)> {
        let (norm, after) = match ops {
            [Recorded { op: Op::Norm { input, weight, epsilon, output }, .. }, after @ ..] => {
                (Some(Norm { input: *input, weight: *weight, epsilon: *epsilon, output: *output }), after)
            }
            _ => (None, ops),
        };
        let [Recorded { op: Op::Linear { input, products }, .. }, after @ ..] = after else { return None };
        let then = after.first().map_or(Then::Nothing, |next| then(products, &next.op));
        if let Some(norm) = &norm {
            // A member may norm rows while another is at its products already.
            let written = products.iter().map(|product| product.output).chain(written_by(&then));
            if norm.output != *input || written.into_iter().any(|buffer| buffer == norm.input) {
                return None;
            }
        }
        let main = usize::from(norm.is_some());
        let count = main + 1 + usize::from(!matches!(then, Then::Nothing));
        let linear = Linear { input: *input, width: self.program.width(*input), products: products.clone() };
        Some((Box::new(Products { norm, linear, then }), count, main))
    }

    fn delta_net(&self, ops: &[Recorded]) -> Option<(Box<dyn Operation>, usize, usize)> {
        let [convolve, rule, norm, ..] = ops else { return None };
        let Op::Convolve { input, weight, state, output: convolved } = convolve.op else { return None };
        let Op::DeltaRule { input: mixed, alpha, beta, time_bias, decay, key_heads, epsilon, state: own, output } =
            rule.op
        else {
            return None;
        };
        let Op::GatedNorm { buffer, gate, weight: norm_weight, head_dim, epsilon: norm_epsilon } = norm.op else {
            return None;
        };
        let spec = *self.state(state);
        if (mixed, own, buffer, head_dim) != (convolved, state, output, spec.head_dim) {
            return None;
        }
        let convolve = Convolve::new(input, self.loaded(weight).vector(), spec.taps, state, convolved);
        let rule = DeltaRule { input: mixed, alpha, beta, time_bias, decay, key_heads, epsilon, state, output, spec };
        let norm = GatedNorm { buffer, gate, weight: norm_weight, head_dim, epsilon: norm_epsilon };
        Some((Box::new(DeltaNet { convolve, rule, norm }), 3, 1))
    }

    fn routed_experts(&self, ops: &[Recorded]) -> Option<(Box<dyn Operation>, usize, usize)> {
        let [Recorded { op: route, .. }, Recorded { op: experts, .. }, ..] = ops else { return None };
        let Op::Route { logits, used, renormalize, scale, output: chosen } = *route else { return None };
        let Op::Experts { input, route, gate, up, down, output } = *experts else { return None };
        if route != chosen {
            return None;
        }
        let [width, hidden, count] = self.loaded(gate).shape();
        let sizes = Sizes { experts: count, used, width, hidden };
        let experts = Experts { input, route, gate, up, down, output, sizes };
        let route = Route { logits, experts: count, used, renormalize, scale, output: chosen };
        Some((Box::new(RoutedExperts { route, experts }), 2, 1))
    }
}

/// What of `next` can be done with products.
fn then(products: &[Product], next: &Op) -> Then {
    let makes = |buffer: Buffer| products.iter().any(|product| product.output == buffer && !product.add);
    match *next {
        Op::SwiGlu { gate, up } if makes(gate) && makes(up) => Then::SwiGlu(SwiGlu { gate, up }),
        Op::AddGated { input, gate, output } if products.len() == 1 && makes(input) => {
            Then::AddGated(AddGated { input, gate, output })
        }
        _ => Then::Nothing,
    }
}

/// What it writes beside the outputs of the products.
fn written_by(then: &Then) -> Option<Buffer> {
    match then {
        Then::AddGated(add) => Some(add.output),
        Then::SwiGlu(_) | Then::Nothing => None,
    }
}
