//! Where on the way through a prompt snapshots are taken.

/// Boundaries from the end of the prompt at which snapshots are taken, beside the first one.
const LAST_BOUNDARIES: usize = 3;

/// Token indices at which to take snapshots while the prompt's tokens from `cached` on are read, the next one last in the list.
///
/// Of the `boundaries` between messages these are worth a copy of the state: the first, where other conversations with the same system prompt and
/// tools will branch off, and the last few, where this conversation will branch off if a message is edited or the template rewrites a turn. In
/// addition, one every `interval` tokens (none for 0), so that a long prompt that differs somewhere is not read anew from the start. The end of the prompt has
/// its own snapshot.
pub(crate) fn marks(boundaries: &[usize], cached: usize, prompt: usize, interval: usize) -> Vec<usize> {
    let mut boundaries: Vec<usize> = boundaries.iter().copied().filter(|&at| 0 < at && at < prompt).collect();
    boundaries.sort_unstable();
    boundaries.dedup();
    let last = boundaries.len().saturating_sub(LAST_BOUNDARIES);
    let mut marks: Vec<usize> = boundaries
        .first()
        .into_iter()
        .chain(&boundaries[last..])
        .copied()
        .collect();
    let intervals = prompt.checked_div(interval).unwrap_or(0);
    marks.extend((1..=intervals).map(|n| n * interval));
    marks.retain(|&at| cached < at && at < prompt);
    marks.sort_unstable_by(|a, b| b.cmp(a));
    marks.dedup();
    marks
}

#[cfg(test)]
mod tests {
    use super::marks;

    #[test]
    fn first_and_last_boundaries_and_intervals() {
        assert_eq!(marks(&[10, 20, 30, 40, 50, 60], 0, 70, 0), [60, 50, 40, 10]);
        assert_eq!(marks(&[10, 20, 30, 40, 50, 60], 45, 70, 0), [60, 50]);
        assert_eq!(marks(&[], 0, 100, 30), [90, 60, 30]);
        assert_eq!(marks(&[30, 31, 30], 29, 60, 30), [31, 30]);
        assert_eq!(marks(&[0, 60, 99], 0, 60, 0), [] as [usize; 0]);
    }
}
