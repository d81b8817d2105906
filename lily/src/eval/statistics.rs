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

/// The token that one side thinks most likely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Top {
    /// Its id.
    pub token: u32,
    /// Its probability by this side.
    pub probability: f64,
    /// Its probability by the other side.
    pub others_probability: f64,
}

/// How two sides differ at a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Kullback-Leibler divergence from the reference to the model, in nats.
    pub kl: f64,
    /// NaN where a logit is none.
    pub max_abs_logit_diff: f64,
    /// The model's choice.
    pub top: Top,
    /// The reference's choice.
    pub reference_top: Top,
}

impl Difference {
    /// Whether both prefer the same token.
    pub fn same_top(&self) -> bool {
        self.top.token == self.reference_top.token
    }

    /// By how much the model and the reference each prefer their own choice to the other's, in nats. A difference of tops within what both
    /// round off is a tie.
    pub fn margins(&self) -> [f64; 2] {
        let margin = |own: Top, other: Top| (own.probability / other.others_probability).ln();
        [
            margin(self.top, self.reference_top),
            margin(self.reference_top, self.top),
        ]
    }
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
    pub fn add(&mut self, logits: &[f32], reference: &[f32], target: u32) -> Difference {
        let (sum, reference_sum) = (log_sum_exp(logits), log_sum_exp(reference));
        let mut kl = 0.0;
        let mut largest = 0.0;
        for (&ours, &theirs) in logits.iter().zip(reference) {
            let (ours, theirs) = (f64::from(ours), f64::from(theirs));
            let diff = (ours - theirs).abs();
            // `f64::max` would drop a NaN; once it is one, it stays one.
            if diff.is_nan() || diff > largest {
                largest = diff;
            }
            let log_p = theirs - reference_sum;
            kl += log_p.exp() * (log_p - (ours - sum));
        }
        if largest.is_nan() || largest > self.max_abs_logit_diff {
            self.max_abs_logit_diff = largest;
        }
        let choice = |id: usize, (own, own_sum): (&[f32], f64), (other, other_sum): (&[f32], f64)| Top {
            token: id as u32,
            probability: (f64::from(own[id]) - own_sum).exp(),
            others_probability: (f64::from(other[id]) - other_sum).exp(),
        };
        let (ours, theirs) = ((logits, sum), (reference, reference_sum));
        let difference = Difference {
            kl,
            max_abs_logit_diff: largest,
            top: choice(top(logits), ours, theirs),
            reference_top: choice(top(reference), theirs, ours),
        };
        self.kl += kl;
        self.same_top += usize::from(difference.same_top());
        self.surprise += sum - f64::from(logits[target as usize]);
        self.reference_surprise += reference_sum - f64::from(reference[target as usize]);
        self.positions += 1;
        difference
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
        let difference = comparison.add(&[1f32.ln(), 3f32.ln()], &[0.0, 0.0], 0);
        assert!(!difference.same_top());
        assert_eq!((difference.top.token, difference.reference_top.token), (1, 0));
        assert!((difference.top.probability - 0.75).abs() < 1e-6);
        assert!((difference.top.others_probability - 0.5).abs() < 1e-6);
        assert!((difference.reference_top.others_probability - 0.25).abs() < 1e-6);
        let [ours, references] = difference.margins();
        assert!((ours - 3f64.ln()).abs() < 1e-6 && references.abs() < 1e-9);
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
