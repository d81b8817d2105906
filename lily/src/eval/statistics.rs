//! What is measured at each position, and its sums.

/// Natural logarithm of the sum of `exp(logits)`.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|&logit| (f64::from(logit) - f64::from(max)).exp())
        .sum();
    f64::from(max) + sum.ln()
}

/// Negative log-likelihood of `target`, in nats.
pub fn surprise(logits: &[f32], target: u32) -> Option<f64> {
    Some(log_sum_exp(logits) - f64::from(*logits.get(target as usize)?))
}

/// Comparison of a model's logits with a reference's.
#[derive(Debug, Default)]
pub struct Comparison {
    pub positions: usize,
    pub max_abs_logit_diff: f64,
    kl: f64,
    same_top: usize,
    surprise: f64,
    reference_surprise: f64,
}

impl Comparison {
    /// Adds a position: both rows are as long, and `target` is one of their ids.
    pub fn add(&mut self, logits: &[f32], reference: &[f32], target: u32) {
        let (sum, reference_sum) = (log_sum_exp(logits), log_sum_exp(reference));
        let mut kl = 0.0;
        for (&ours, &theirs) in logits.iter().zip(reference) {
            let (ours, theirs) = (f64::from(ours), f64::from(theirs));
            let diff = (ours - theirs).abs();
            // `f64::max` would drop a NaN; once it is one, it stays one.
            if diff.is_nan() || diff > self.max_abs_logit_diff {
                self.max_abs_logit_diff = diff;
            }
            let log_p = theirs - reference_sum;
            kl += log_p.exp() * (log_p - (ours - sum));
        }
        self.kl += kl;
        self.same_top += usize::from(top(logits) == top(reference));
        self.surprise += sum - f64::from(logits[target as usize]);
        self.reference_surprise += reference_sum - f64::from(reference[target as usize]);
        self.positions += 1;
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / self.positions as f64
    }

    /// Mean Kullback-Leibler divergence from the reference to the model, in nats.
    pub fn mean_kl(&self) -> f64 {
        self.mean(self.kl)
    }

    /// Share of the positions at which both prefer the same token.
    pub fn top1_agreement(&self) -> f64 {
        self.mean(self.same_top as f64)
    }

    pub fn perplexity(&self) -> f64 {
        self.mean(self.surprise).exp()
    }

    pub fn reference_perplexity(&self) -> f64 {
        self.mean(self.reference_surprise).exp()
    }
}

/// The largest logit's id, the lowest among equals.
fn top(logits: &[f32]) -> usize {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_agree_in_everything() {
        let mut comparison = Comparison::default();
        comparison.add(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], 1);
        assert_eq!(comparison.max_abs_logit_diff, 0.0);
        assert!(comparison.mean_kl().abs() < 1e-15);
        assert_eq!(comparison.top1_agreement(), 1.0);
        assert_eq!(comparison.perplexity(), comparison.reference_perplexity());
    }

    #[test]
    fn differences_are_measured() {
        let mut comparison = Comparison::default();
        // p = (1/2, 1/2) against q = (1/4, 3/4).
        comparison.add(&[1f32.ln(), 3f32.ln()], &[0.0, 0.0], 0);
        assert!((comparison.mean_kl() - (0.5 * (2f64).ln() + 0.5 * (2.0f64 / 3.0).ln())).abs() < 1e-6);
        assert!((comparison.perplexity() - 4.0).abs() < 1e-5);
        assert!((comparison.reference_perplexity() - 2.0).abs() < 1e-9);
        assert_eq!(comparison.top1_agreement(), 0.0);
        assert!((comparison.max_abs_logit_diff - 3f64.ln()).abs() < 1e-6);
    }

    #[test]
    fn what_is_not_a_number_is_not_hidden() {
        let mut comparison = Comparison::default();
        comparison.add(&[f32::NAN, 1.0], &[0.0, 1.0], 1);
        comparison.add(&[0.0, 2.0], &[0.0, 1.0], 1);
        assert!(comparison.max_abs_logit_diff.is_nan());
        assert!(comparison.mean_kl().is_nan());
    }
}
