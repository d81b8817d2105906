//! The sampler against a plain reference in f64 that sorts everything.

use std::collections::HashMap;

use super::*;

fn sampling(temperature: f32) -> Sampling {
    Sampling {
        temperature,
        seed: Some(1),
        ..Sampling::greedy()
    }
}

/// Logits of a plausible shape: a few large, a long tail, some equal.
fn logits(len: usize, seed: u64) -> Vec<f32> {
    (0..len as u64)
        .map(|step| ((uniform(seed, step) * 64.0).round() / 64.0).powi(6) * 12.0 - 4.0)
        .collect()
}

/// Every candidate and its probability, most likely first.
fn reference(logits: &[f32], s: &Sampling) -> Vec<(u32, f64)> {
    let mut all: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|&l| f64::from(l))).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if s.top_k > 0 {
        all.truncate(s.top_k);
    }
    let max = all[0].1;
    for (_, l) in &mut all {
        *l = ((*l - max) / f64::from(s.temperature)).exp();
    }
    let total: f64 = all.iter().map(|(_, w)| w).sum();
    if s.top_p < 1.0 {
        let mut sum = 0.0;
        let mut keep = 0;
        while keep < all.len() && (keep == 0 || sum < f64::from(s.top_p) * total) {
            sum += all[keep].1;
            keep += 1;
        }
        all.truncate(keep);
    }
    all.retain(|(_, w)| *w >= f64::from(s.min_p));
    let total: f64 = all.iter().map(|(_, w)| w).sum();
    all.iter_mut().for_each(|(_, w)| *w /= total);
    all
}

fn settings() -> Vec<Sampling> {
    let base = sampling(1.0);
    vec![
        base.clone(),
        sampling(0.3),
        sampling(2.5),
        Sampling {
            top_k: 1,
            ..base.clone()
        },
        Sampling {
            top_k: 20,
            top_p: 0.95,
            ..base.clone()
        },
        Sampling {
            top_k: 700,
            top_p: 0.5,
            ..base.clone()
        },
        Sampling {
            top_p: 0.8,
            ..sampling(0.7)
        },
        Sampling {
            top_p: 0.01,
            ..base.clone()
        },
        Sampling {
            min_p: 0.1,
            ..base.clone()
        },
        Sampling {
            min_p: 1.0,
            ..base.clone()
        },
        Sampling {
            top_k: 40,
            top_p: 0.9,
            min_p: 0.05,
            ..sampling(1.5)
        },
    ]
}

#[test]
fn every_draw_is_where_the_inverse_distribution_says() {
    let mut sampler = Sampler::default();
    for (len, seed) in [(7, 1), (300, 2), (5000, 3)] {
        let logits = logits(len, seed);
        for s in settings() {
            let reference = reference(&logits, &s);
            let mut state = SamplerState::new(s.clone(), &[], len, 0, |_| false);
            for step in 0..200 {
                let token = sampler.sample(&logits, &state, true, None).unwrap();
                let u = f64::from(uniform(1, step));
                let mut running = 0.0;
                let expected = reference.iter().find(|(_, p)| {
                    running += p;
                    running > u
                });
                // A draw within rounding of a border may fall on either side.
                let border =
                    (running - u).abs() < 1e-9 || expected.is_some_and(|(_, p)| (running - p - u).abs() < 1e-9);
                if !border {
                    assert_eq!(
                        Some(token),
                        expected.map(|(id, _)| *id),
                        "{len} tokens, {s:?}, step {step}"
                    );
                }
                state.accept(token, true);
            }
        }
    }
}

#[test]
fn frequencies_follow_the_reference() {
    let mut sampler = Sampler::default();
    let logits = logits(400, 9);
    const DRAWS: usize = 40_000;
    for s in settings() {
        let reference = reference(&logits, &s);
        let mut state = SamplerState::new(s.clone(), &[], logits.len(), 0, |_| false);
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for _ in 0..DRAWS {
            let token = sampler.sample(&logits, &state, true, None).unwrap();
            *counts.entry(token).or_default() += 1;
            state.accept(token, true);
        }
        // Cells that expect fewer than 10 are joined, as the chi-square test asks.
        let (mut chi_square, mut cells, mut rest_expected, mut rest_found) = (0.0, 0, 0.0, 0.0);
        for (id, p) in &reference {
            let (expected, found) = (p * DRAWS as f64, counts.remove(id).unwrap_or(0) as f64);
            if expected < 10.0 {
                rest_expected += expected;
                rest_found += found;
            } else {
                chi_square += (found - expected).powi(2) / expected;
                cells += 1;
            }
        }
        assert!(
            counts.is_empty(),
            "{s:?}: tokens outside the reference's candidates: {counts:?}"
        );
        if rest_expected >= 10.0 {
            chi_square += (rest_found - rest_expected).powi(2) / rest_expected;
            cells += 1;
        }
        // The mean is cells - 1 and the variance twice that; five standard deviations and a little for few cells.
        let freedom = (cells as f64 - 1.0).max(0.0);
        assert!(
            chi_square <= freedom + 5.0 * (2.0 * freedom).sqrt() + 5.0,
            "{s:?}: {chi_square} for {freedom}"
        );
    }
}

#[test]
fn greedy_takes_the_lowest_of_the_largest() {
    let state = SamplerState::new(Sampling::greedy(), &[], 4, 0, |_| false);
    assert_eq!(
        Sampler::default().sample(&[1.0, 3.0, 3.0, 2.0], &state, true, None),
        Ok(1)
    );
}

#[test]
fn seeds_reproduce_and_differ() {
    let logits = logits(1000, 4);
    let run = |seed| {
        let mut sampler = Sampler::default();
        let mut state = SamplerState::new(Sampling { seed, ..sampling(1.0) }, &[], 1000, 99, |_| false);
        (0..50)
            .map(|_| {
                let token = sampler.sample(&logits, &state, true, None).unwrap();
                state.accept(token, true);
                token
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(run(Some(5)), run(Some(5)));
    assert_ne!(run(Some(5)), run(Some(6)));
    assert_eq!(
        run(None),
        run(Some(99)),
        "the fresh seed is used where the request has none"
    );
}

#[test]
fn penalties_follow_their_definition() {
    let s = Sampling {
        repetition_penalty: 2.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        ..Sampling::greedy()
    };
    let mut state = SamplerState::new(s.clone(), &[0, 1, 1], 5, 0, |id| id == 1);
    state.accept(2, true);
    state.accept(2, true);
    state.accept(3, false);
    let mut logits = [4.0, 4.0, -1.0, 4.0, 4.0];
    state.history.as_ref().unwrap().apply(&s, &mut logits);
    // In the prompt: halved. Exempt, uncounted or new: untouched. Twice in the reply: doubled below zero, then 0.5 + 2 * 0.25 less.
    assert_eq!(logits, [2.0, 4.0, -3.0, 4.0, 4.0]);
    assert_eq!(
        Sampler::default().sample(&[4.0, 1.0, 1.0, 3.0, 0.0], &state, true, None),
        Ok(3)
    );
    assert_eq!(
        Sampler::default().sample(&[4.0, 1.0, 1.0, 3.0, 0.0], &state, false, None),
        Ok(0),
        "not penalised"
    );
}

#[test]
fn bias_bans_and_forces() {
    let with = |bias: &[(u32, f32)]| {
        let s = Sampling {
            logit_bias: bias.to_vec(),
            ..sampling(1.0)
        };
        let state = SamplerState::new(s, &[], 3, 0, |_| false);
        Sampler::default().sample(&[5.0, 1.0, 0.0], &state, true, None)
    };
    assert_eq!(with(&[(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)]), Ok(2));
    assert_eq!(with(&[(2, f32::INFINITY)]), Ok(2));
    let ban = f32::NEG_INFINITY;
    assert_eq!(with(&[(0, ban), (1, ban), (2, ban)]), Err(NoToken::NoneAllowed));
}

#[test]
fn mask_allows_only_its_bits() {
    let logits: Vec<f32> = (0..70).map(|id| id as f32).collect();
    for s in [
        Sampling::greedy(),
        sampling(1.0),
        Sampling {
            top_k: 20,
            ..sampling(1.0)
        },
    ] {
        let state = SamplerState::new(s, &[], 70, 0, |_| false);
        let mask = [0, 1 << 5, 0];
        assert_eq!(Sampler::default().sample(&logits, &state, true, Some(&mask)), Ok(37));
        assert_eq!(
            Sampler::default().sample(&logits, &state, true, Some(&[0; 3])),
            Err(NoToken::NoneAllowed)
        );
    }
}

#[test]
fn what_is_not_a_number_is_refused() {
    let state = SamplerState::new(sampling(1.0), &[], 3, 0, |_| false);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(
            Sampler::default().sample(&[1.0, bad, 0.0], &state, true, None),
            Err(NoToken::NotFinite)
        );
    }
}

#[test]
fn logprobs_are_of_the_raw_distribution() {
    let logits = [2.0f32, 1.0, 0.0, 2.0];
    let found = Sampler::default().logprobs(&logits, 1, 2);
    let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    let expect = |l: f64| (l - sum.ln()) as f32;
    assert_eq!(found.id, 1);
    assert!((found.logprob - expect(1.0)).abs() < 1e-6);
    assert_eq!(found.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 3]);
    assert!(found.top.iter().all(|t| (t.1 - expect(2.0)).abs() < 1e-6));
}
