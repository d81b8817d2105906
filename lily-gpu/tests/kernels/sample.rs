//! The sampler's kernels against the definition, in f64.

use lily_gpu::params::{Params, SampleParams, SampleSlices};
use lily_gpu::pass::Dispatch;

use crate::*;

const LOG: usize = 4;
const SLICES: usize = 3;

/// Philox4x32-10's first word, as its authors define it.
fn philox(counter: u32, seed: u64) -> u32 {
    let (mut c, mut key) = ([counter, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
    for _ in 0..10 {
        let (a, b) = (0xD251_1F53u64 * u64::from(c[0]), 0xCD9E_8D57u64 * u64::from(c[2]));
        c = [
            (b >> 32) as u32 ^ c[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c[0]
}

#[test]
fn philox_known_answer() {
    assert_eq!(philox(0, 0), 0x6627_e8d5);
}

struct Setting {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
}

/// Tokens that the definition allows when sums are off by a millionth: usually one.
fn expected(logits: &[f32], s: &Setting, seed: u64, step: u32) -> Vec<u32> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    if s.top_k > 0 {
        order.truncate(s.top_k);
    }
    let largest = f64::from(logits[order[0]]);
    let weights: Vec<f64> = order
        .iter()
        .map(|&i| ((f64::from(logits[i]) - largest) / f64::from(s.temperature)).exp())
        .collect();
    let u = f64::from((philox(step, seed) >> 8) as f32 / 16_777_216.0);
    [-2e-6, 0.0, 2e-6]
        .iter()
        .flat_map(|slack| {
            let total: f64 = weights.iter().sum();
            let mut sum = 0.0;
            let mut stay = 0;
            while stay < weights.len() && (stay == 0 || sum < f64::from(s.top_p) * total * (1.0 + slack)) {
                sum += weights[stay];
                stay += 1;
            }
            let stay = weights[..stay]
                .iter()
                .take_while(|&&w| w >= f64::from(s.min_p))
                .count()
                .max(1);
            let sum: f64 = weights[..stay].iter().sum();
            [-2e-6, 0.0, 2e-6].map(|slack| {
                let mut running = 0.0;
                let rank = weights[..stay].iter().position(|w| {
                    running += w;
                    running > (u + slack) * sum
                });
                order[rank.unwrap_or(stay - 1)] as u32
            })
        })
        .collect()
}

struct Sampler {
    gpu: Gpu,
    step: Slice,
    log: Slice,
    history: Slice,
}

impl Sampler {
    fn new(vocab: usize, history: &[u32], checked: bool) -> Sampler {
        let mut gpu = Gpu::new(checked);
        let history = if history.is_empty() {
            gpu.u32(&vec![0; vocab])
        } else {
            gpu.u32(history)
        };
        Sampler {
            step: gpu.u32(&[0, 10, 0, 0]),
            log: gpu.u32(&[u32::MAX; LOG]),
            history,
            gpu,
        }
    }

    /// One token; gives back the step state.
    fn run(&mut self, logits: Slice, params: &SampleParams, penalties: bool) -> Vec<u32> {
        let gpu = &mut self.gpu;
        let p = gpu.bytes(&params.bytes());
        let largest = gpu.scratch(SLICES * 12);
        gpu.run(
            Dispatch::new("sample_largest", "test")
                .read(logits)
                .write(largest)
                .read(p)
                .grid(SLICES, 1, 1)
                .threads(256),
        );
        let greedy = params.temperature == 0.0;
        let dispatch =
            Dispatch::new(if greedy { "sample_greedy" } else { "sample_draw" }, "test").constant(0, penalties);
        let dispatch = if greedy {
            dispatch.read(largest).threads(32)
        } else {
            dispatch.read(logits).read(largest).threads(1024)
        };
        gpu.run(
            dispatch
                .update(self.step)
                .update(self.log)
                .update(self.history)
                .read(p)
                .params(&SampleSlices { slices: SLICES as u32 }),
        );
        gpu.read_u32(self.step)
    }
}

fn params(vocab: usize, s: &Setting, seed: u64) -> SampleParams {
    SampleParams {
        vocab: vocab as u32,
        top_k: s.top_k as u32,
        temperature: s.temperature,
        top_p: s.top_p,
        min_p: s.min_p,
        repetition: 1.0,
        presence: 0.0,
        frequency: 0.0,
        seed_low: seed as u32,
        seed_high: (seed >> 32) as u32,
        log_slots: LOG as u32,
    }
}

/// Logits with many ties and both zeros; what lies past `vocab` is larger than all of them.
fn logits(vocab: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    let mut logits: Vec<f32> = random.vec(vocab, 6.0).iter().map(|l| (l * 4.0).round() / 4.0).collect();
    logits.extend([100.0; 5]);
    logits
}

#[test]
fn draws() {
    let settings = [
        Setting {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
        },
        Setting {
            temperature: 0.7,
            top_k: 20,
            top_p: 0.95,
            min_p: 0.0,
        },
        Setting {
            temperature: 1.5,
            top_k: 0,
            top_p: 0.6,
            min_p: 0.0,
        },
        Setting {
            temperature: 1.0,
            top_k: 5,
            top_p: 1.0,
            min_p: 0.2,
        },
        Setting {
            temperature: 3.0,
            top_k: 1,
            top_p: 0.1,
            min_p: 1.0,
        },
        Setting {
            temperature: 0.05,
            top_k: 0,
            top_p: 0.9,
            min_p: 0.05,
        },
    ];
    for vocab in [1, 2, 31, 1023, 1025, 5000] {
        for (index, setting) in settings.iter().enumerate() {
            let seed = 0x1234_5678_9abc_def0 + index as u64;
            let mut sampler = Sampler::new(vocab, &[], false);
            let values = logits(vocab, index as u64 + 1);
            let l = sampler.gpu.f32(&values);
            let top_k = setting.top_k.min(vocab);
            for step in 0..3 {
                let state = sampler.run(l, &params(vocab, setting, seed), false);
                let allowed = expected(&values[..vocab], &Setting { top_k, ..*setting }, seed, step);
                assert!(
                    allowed.contains(&state[0]),
                    "{vocab}, setting {index}, step {step}: {} not in {allowed:?}",
                    state[0]
                );
                assert_eq!(state[1..], [11 + step, 1 + step, 0]);
                assert_eq!(sampler.gpu.read_u32(sampler.log)[step as usize % LOG], state[0]);
            }
        }
    }
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    let setting = Setting {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
    };
    for vocab in [1, 7, 768, 3000] {
        let mut sampler = Sampler::new(vocab, &[], false);
        let values = logits(vocab, vocab as u64);
        let largest = values[..vocab].iter().copied().fold(f32::MIN, f32::max);
        let expected = values.iter().position(|&v| v == largest).unwrap() as u32;
        let l = sampler.gpu.f32(&values);
        assert_eq!(
            sampler.run(l, &params(vocab, &setting, 0), false),
            [expected, 11, 1, 0],
            "{vocab}"
        );
    }
}

#[test]
fn a_logit_that_is_not_finite_fails_the_step() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for temperature in [0.0, 1.0] {
            let setting = Setting {
                temperature,
                top_k: 0,
                top_p: 1.0,
                min_p: 0.0,
            };
            let mut values = logits(300, 3);
            values[200] = bad;
            let mut sampler = Sampler::new(300, &[], false);
            let l = sampler.gpu.f32(&values);
            assert_eq!(
                sampler.run(l, &params(300, &setting, 0), false)[3],
                1,
                "{bad} at {temperature}"
            );
            assert_eq!(sampler.gpu.read_u32(sampler.log)[0], u32::MAX, "{bad} at {temperature}");
        }
    }
}

fn adjust(checked: bool) {
    let vocab = 300;
    let mut random = Random::new(4);
    let values = random.vec(vocab, 5.0);
    let bias: Vec<f32> = (0..vocab)
        .map(|i| if i % 7 == 0 { random.unit() * 3.0 } else { 0.0 })
        .collect();
    let history: Vec<u32> = (0..vocab as u32)
        .map(|i| if i % 3 == 0 { 0x8000_0000 | (i % 5) } else { 0 })
        .collect();
    let setting = Setting {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
    };
    let p = SampleParams {
        repetition: 1.3,
        presence: 0.4,
        frequency: 0.2,
        ..params(vocab, &setting, 0)
    };
    let mut gpu = Gpu::new(checked);
    let (l, h, b, p_in) = (
        gpu.f32(&values),
        gpu.u32(&history),
        gpu.f32(&bias),
        gpu.bytes(&p.bytes()),
    );
    let adjusted = gpu.scratch(vocab * 4);
    gpu.run(
        Dispatch::new("sample_adjust", "test")
            .constant(0, true)
            .constant(1, true)
            .read(l)
            .read(h)
            .read(b)
            .write(adjusted)
            .read(p_in)
            .grid(vocab.div_ceil(256), 1, 1)
            .threads(256),
    );
    let expected: Vec<f64> = (0..vocab)
        .map(|i| {
            let mut v = f64::from(values[i]);
            if history[i] >> 31 == 1 {
                v = if v > 0.0 { v / 1.3 } else { v * 1.3 };
            }
            let count = history[i] & 0x3fff_ffff;
            if count > 0 {
                v -= 0.4 + 0.2 * f64::from(count);
            }
            v + f64::from(bias[i])
        })
        .collect();
    close("adjust", &gpu.read_f32(adjusted), &expected, 1e-5, 1.0);
}

#[test]
fn penalties_and_bias() {
    adjust(false);
    adjust(true);
    // a chosen token enters the history, unless it is exempt
    let setting = Setting {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
    };
    for (before, after) in [(0, 0x8000_0001), (0x8000_0002, 0x8000_0003), (0x4000_0000, 0x4000_0000)] {
        let mut sampler = Sampler::new(4, &[0, 0, before, 0], false);
        let l = sampler.gpu.f32(&[0.0, 0.0, 5.0, 0.0]);
        sampler.run(l, &params(4, &setting, 0), true);
        assert_eq!(sampler.gpu.read_u32(sampler.history), [0, 0, after, 0]);
    }
}

#[test]
fn checked() {
    for setting in [
        Setting {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
        },
        Setting {
            temperature: 1.0,
            top_k: 9,
            top_p: 0.9,
            min_p: 0.1,
        },
    ] {
        let mut sampler = Sampler::new(40, &[], true);
        let l = sampler.gpu.f32(&logits(40, 5));
        sampler.run(l, &params(40, &setting, 1), true);
    }
}
