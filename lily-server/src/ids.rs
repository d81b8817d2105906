//! Ids of replies and tool calls.

/// `PREFIX_` and 24 random characters.
pub fn new(prefix: &str) -> String {
    format!("{prefix}_{}", random())
}

/// `PREFIX-` and 24 random characters, as OpenAI writes ids of completions.
pub fn dashed(prefix: &str) -> String {
    format!("{prefix}-{}", random())
}

/// 24 random hexadecimal digits. Ids only have to differ, so where the system has no randomness a counter will do.
fn random() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0_u8; 12];
    if getrandom::fill(&mut bytes).is_err() {
        bytes[4..].copy_from_slice(&COUNTER.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn ids_differ() {
        let id = super::new("call");
        assert_eq!(id.len(), "call_".len() + 24);
        assert_ne!(id, super::new("call"));
    }
}
