//! Which experts a token goes to, and which tokens an expert gets.

use std::ops::Range;

/// The tokens of one expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpertRows {
    pub(crate) expert: usize,
    /// Its part of [`Routing::slot_rows`] and [`Routing::slot_weights`].
    pub(crate) slots: Range<usize>,
}

/// The routes of the rows of one step, first by row, then grouped by expert.
#[derive(Debug)]
pub(crate) struct Routing {
    experts: usize,
    top_k: usize,
    /// `[rows, top_k]`, most probable first.
    chosen: Vec<u32>,
    /// `[rows, top_k]`
    weights: Vec<f32>,
    /// Row of each slot; a slot is one row at one expert, experts in order, rows in order.
    pub(crate) slot_rows: Vec<u32>,
    /// Routing weight of each slot.
    pub(crate) slot_weights: Vec<f32>,
    /// Experts that have rows, in order.
    pub(crate) groups: Vec<ExpertRows>,
    next_slot: Vec<usize>,
}

impl Routing {
    pub(crate) fn new(experts: usize, top_k: usize, rows: usize) -> Routing {
        Routing {
            experts,
            top_k,
            chosen: vec![0; rows * top_k],
            weights: vec![0.0; rows * top_k],
            slot_rows: vec![0; rows * top_k],
            slot_weights: vec![0.0; rows * top_k],
            groups: Vec::with_capacity(experts),
            next_slot: vec![0; experts],
        }
    }

    /// Routes each row of `logits` (`[rows, experts]`) and groups the rows by expert.
    pub(crate) fn route(&mut self, logits: &[f32]) {
        for (row, logits) in logits.chunks_exact(self.experts).enumerate() {
            let range = row * self.top_k..(row + 1) * self.top_k;
            choose(logits, &mut self.chosen[range.clone()], &mut self.weights[range]);
        }
        self.group(logits.len() / self.experts);
    }

    fn group(&mut self, rows: usize) {
        let chosen = &self.chosen[..rows * self.top_k];
        self.next_slot.fill(0);
        for &expert in chosen {
            self.next_slot[expert as usize] += 1;
        }
        self.groups.clear();
        let mut start = 0;
        for (expert, slot) in self.next_slot.iter_mut().enumerate() {
            let end = start + *slot;
            if end > start {
                self.groups.push(ExpertRows {
                    expert,
                    slots: start..end,
                });
            }
            *slot = start;
            start = end;
        }
        for (route, &expert) in chosen.iter().enumerate() {
            let slot = &mut self.next_slot[expert as usize];
            self.slot_rows[*slot] = (route / self.top_k) as u32;
            self.slot_weights[*slot] = self.weights[route];
            *slot += 1;
        }
    }
}

/// The `chosen.len()` largest logits (of equal ones the first), and their softmax.
///
/// The model takes the softmax over all experts, the largest probabilities, and divides them by their sum: the sum over all
/// cancels, and the order of the probabilities is that of the logits.
fn choose(logits: &[f32], chosen: &mut [u32], weights: &mut [f32]) {
    let mut count = 0;
    for (expert, &logit) in logits.iter().enumerate() {
        let mut at = count;
        while at > 0 && logit > weights[at - 1] {
            at -= 1;
        }
        if at < chosen.len() {
            count = chosen.len().min(count + 1);
            chosen.copy_within(at..count - 1, at + 1);
            weights.copy_within(at..count - 1, at + 1);
            chosen[at] = expert as u32;
            weights[at] = logit;
        }
    }
    let max = weights[0];
    let mut sum = 0.0;
    for weight in weights.iter_mut() {
        *weight = (*weight - max).exp();
        sum += *weight;
    }
    weights.iter_mut().for_each(|weight| *weight /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choose_follows_softmax_then_top_k_then_renormalise() {
        let mut seed = 1u32;
        for experts in [2, 8, 16, 256] {
            for top_k in [1, 2, 4, 8].into_iter().filter(|&k| k <= experts) {
                let logits: Vec<f32> = (0..experts)
                    .map(|_| {
                        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        // Few distinct values, so that ties occur.
                        (seed >> 27) as f32 * 0.3
                    })
                    .collect();
                let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
                let probabilities: Vec<f64> = logits.iter().map(|&logit| f64::from(logit).exp() / sum).collect();
                let mut order: Vec<usize> = (0..experts).collect();
                order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
                let kept: f64 = order[..top_k].iter().map(|&expert| probabilities[expert]).sum();

                let (mut chosen, mut weights) = (vec![0; top_k], vec![0.0; top_k]);
                choose(&logits, &mut chosen, &mut weights);
                for (rank, &expert) in order[..top_k].iter().enumerate() {
                    assert_eq!(chosen[rank] as usize, expert);
                    assert!((f64::from(weights[rank]) - probabilities[expert] / kept).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn groups_hold_every_route_once() {
        // Three rows over four experts: expert 2 gets every row, expert 1 none.
        let mut routing = Routing::new(4, 2, 8);
        routing.route(&[0.0, -9.0, 5.0, 1.0, 3.0, -9.0, 5.0, 1.0, 0.0, -9.0, 5.0, 1.0]);
        let groups: Vec<(usize, Vec<u32>)> = routing
            .groups
            .iter()
            .map(|group| (group.expert, routing.slot_rows[group.slots.clone()].to_vec()))
            .collect();
        assert_eq!(groups, [(0, vec![1]), (2, vec![0, 1, 2]), (3, vec![0, 2])]);
        for row in 0..3 {
            let sum: f32 = (0..6)
                .filter(|&slot| routing.slot_rows[slot] == row)
                .map(|slot| routing.slot_weights[slot])
                .sum();
            assert!((sum - 1.0).abs() < 1e-6);
        }
    }
}
