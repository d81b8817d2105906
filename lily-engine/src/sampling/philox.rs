//! A counter-based random generator: every number is a function of the seed and a counter, so that a GPU computes the same one.

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let products = [
            MULTIPLIERS[0] * u64::from(counter[0]),
            MULTIPLIERS[1] * u64::from(counter[2]),
        ];
        let (high, low) = (
            products.map(|product| (product >> 32) as u32),
            products.map(|product| product as u32),
        );
        counter = [
            high[1] ^ counter[1] ^ key[0],
            low[1],
            high[0] ^ counter[3] ^ key[1],
            low[0],
        ];
    }
    counter
}

/// Random number `step` of `seed`, at least 0 and below 1: the upper 24 bits of the first word, a number that f32 holds exactly.
pub fn uniform(seed: u64, step: u64) -> f32 {
    let word = philox4x32(
        [step as u32, (step >> 32) as u32, 0, 0],
        [seed as u32, (seed >> 32) as u32],
    )[0];
    (word >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with Random123 (`kat_vectors`).
    #[test]
    fn known_answers() {
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn uniform_fills_its_range_evenly() {
        let mut counts = [0u32; 16];
        for step in 0..160_000 {
            let u = uniform(7, step);
            assert!((0.0..1.0).contains(&u));
            counts[(u * 16.0) as usize] += 1;
        }
        // 15 degrees of freedom: above 44.3 once in 10,000 generators.
        let chi_square: f64 = counts
            .iter()
            .map(|&n| (f64::from(n) - 10_000.0).powi(2) / 10_000.0)
            .sum();
        assert!(chi_square < 44.3, "{chi_square}");
    }
}
