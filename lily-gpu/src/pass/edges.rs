//! The fewest edges that keep a pass's order.

use super::Pass;

impl Pass {
    /// `(earlier, later)` for every dependency that no chain of others implies, by the later dispatch.
    ///
    /// A graph of these has the same order as [`Pass::dependencies`] and the least work for whoever enforces it.
    pub fn edges(&self) -> Vec<(usize, usize)> {
        let count = self.dispatches.len();
        // reached[i]: the dispatches that i comes after, a bit each
        let mut reached = vec![vec![0u64; count.div_ceil(64)]; count];
        let mut edges = Vec::new();
        for later in 0..count {
            let mut before = vec![0u64; count.div_ceil(64)];
            // The nearest first: whatever it comes after needs no edge of its own.
            for &earlier in self.dependencies[later].iter().rev() {
                let bit = 1 << (earlier % 64);
                if before[earlier / 64] & bit != 0 {
                    continue;
                }
                edges.push((earlier, later));
                before[earlier / 64] |= bit;
                before
                    .iter_mut()
                    .zip(&reached[earlier])
                    .for_each(|(all, more)| *all |= more);
            }
            reached[later] = before;
        }
        edges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pass with these dependencies; nothing else of it matters here.
    fn pass(dependencies: &[&[usize]]) -> Pass {
        Pass {
            dispatches: vec![super::super::Dispatch::new("k", "k"); dependencies.len()],
            dependencies: dependencies.iter().map(|d| d.to_vec()).collect(),
            ..Pass::default()
        }
    }

    /// Every pair that must be in order, from the definition.
    fn order(count: usize, edges: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let mut all = vec![vec![false; count]; count];
        for later in 0..count {
            for &(from, _) in edges.iter().filter(|edge| edge.1 == later) {
                let before = all[from].clone();
                all[later].iter_mut().zip(before).for_each(|(is, was)| *is |= was);
                all[later][from] = true;
            }
        }
        let pairs = (0..count).flat_map(|later| (0..later).map(move |earlier| (earlier, later)));
        pairs.filter(|&(earlier, later)| all[later][earlier]).collect()
    }

    #[test]
    fn implied_dependencies_have_no_edge() {
        // a chain, a shortcut over it, a diamond with a shortcut, and one that stands alone
        let pass = pass(&[&[], &[0], &[0, 1], &[1], &[0, 1, 2, 3], &[]]);
        assert_eq!(pass.edges(), [(0, 1), (1, 2), (1, 3), (3, 4), (2, 4)]);
    }

    #[test]
    fn no_order_is_lost_and_no_edge_is_idle() {
        let mut state = 1u32;
        let mut next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        for count in [1, 2, 63, 64, 65, 130] {
            let dependencies: Vec<Vec<usize>> = (0..count)
                .map(|later| (0..later).filter(|_| next() % 8 == 0).collect())
                .collect();
            let borrowed: Vec<&[usize]> = dependencies.iter().map(Vec::as_slice).collect();
            let pass = pass(&borrowed);
            let given: Vec<(usize, usize)> = (0..count)
                .flat_map(|later| dependencies[later].iter().map(move |&earlier| (earlier, later)))
                .collect();
            let edges = pass.edges();
            let wanted = order(count, &given);
            assert_eq!(order(count, &edges), wanted);
            for skipped in 0..edges.len() {
                let mut fewer = edges.clone();
                fewer.remove(skipped);
                assert_ne!(order(count, &fewer), wanted, "edge {skipped} of {count}");
            }
        }
    }
}
