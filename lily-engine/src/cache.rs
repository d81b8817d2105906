//! The prefix cache: snapshots of sequences, found by the tokens that they hold.
//!
//! The recurrent state of a hybrid model cannot be rewound, so a snapshot serves prompts that start with exactly its tokens, all of them. The
//! longest such snapshot is taken; what the prompt has beyond it is computed.
//!
//! Bytes are counted as they lie in memory: what snapshots share (blocks of the KV cache) counts once. When they exceed the budget, snapshots
//! go in this order, within each group the one used longest ago first:
//! 1. those on the way to a longer snapshot, used at most once: older turns of a conversation that went on. Of these, first those of the
//!    conversation that is being added to, so that a long conversation displaces itself before others;
//! 2. the rest: the latest state of each conversation, and starts that several conversations share.

use std::collections::HashMap;

/// A snapshot in the cache.
struct Entry<S> {
    tokens: Box<[u32]>,
    snapshot: S,
    /// Whether a prompt of exactly these tokens needs no prefill at all.
    has_logits: bool,
    /// Pieces of memory, as `Parts` counts them.
    parts: Vec<(usize, usize)>,
    conversation: Option<String>,
    last_used: u64,
    uses: u32,
    /// Entries that start with all of this one's tokens.
    extended_by: usize,
}

/// Pieces of memory that entries hold, each counted once.
#[derive(Default)]
struct Parts {
    /// For each piece its bytes and the entries that hold it.
    held: HashMap<usize, (usize, usize)>,
    bytes: usize,
}

impl Parts {
    fn add(&mut self, parts: &[(usize, usize)]) {
        for &(identity, bytes) in parts {
            let (_, holders) = self.held.entry(identity).or_insert((bytes, 0));
            if *holders == 0 {
                self.bytes += bytes;
            }
            *holders += 1;
        }
    }

    fn remove(&mut self, parts: &[(usize, usize)]) {
        for (identity, _) in parts {
            if let Some((bytes, holders)) = self.held.get_mut(identity) {
                *holders -= 1;
                if *holders == 0 {
                    self.bytes -= *bytes;
                    self.held.remove(identity);
                }
            }
        }
    }
}

/// What goes into the cache beside the snapshot itself.
pub(crate) struct NewEntry<'a> {
    /// The tokens that the snapshot holds.
    pub(crate) tokens: &'a [u32],
    /// Whether it has the logits after the last of them.
    pub(crate) has_logits: bool,
    /// Identity and bytes of each piece of memory that the snapshot keeps alive.
    pub(crate) parts: Vec<(usize, usize)>,
    /// The conversation that it belongs to.
    pub(crate) conversation: Option<&'a str>,
}

/// Snapshots by their tokens, within a budget of bytes.
pub(crate) struct PrefixCache<S> {
    entries: HashMap<u64, Entry<S>>,
    parts: Parts,
    budget: usize,
    clock: u64,
}

/// A bound for tiny models, whose snapshots are so small that looking through them would take longer than computing them anew.
const MAX_ENTRIES: usize = 4096;

impl<S> PrefixCache<S> {
    /// An empty cache of at most `budget` bytes.
    pub(crate) fn new(budget: usize) -> Self {
        PrefixCache {
            entries: HashMap::new(),
            parts: Parts::default(),
            budget,
            clock: 0,
        }
    }

    /// Whether anything can be kept at all.
    pub(crate) fn is_enabled(&self) -> bool {
        self.budget > 0
    }

    /// Snapshots held.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of them.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.bytes
    }

    /// The longest snapshot that `prompt` starts with: its key and its tokens. One of the whole prompt counts only with its logits.
    pub(crate) fn find(&self, prompt: &[u32]) -> Option<(u64, usize)> {
        let serves = |entry: &Entry<S>| {
            prompt.starts_with(&entry.tokens) && (entry.has_logits || entry.tokens.len() < prompt.len())
        };
        let longest = self
            .entries
            .iter()
            .filter(|(_, entry)| serves(entry))
            .max_by_key(|(_, entry)| entry.tokens.len());
        longest.map(|(&key, entry)| (key, entry.tokens.len()))
    }

    /// The snapshot of an entry; marks it as used.
    pub(crate) fn get(&mut self, key: u64) -> Option<&S> {
        self.clock += 1;
        let entry = self.entries.get_mut(&key)?;
        entry.last_used = self.clock;
        entry.uses += 1;
        Some(&entry.snapshot)
    }

    /// Whether a snapshot of exactly these tokens is there, as good as one `with_logits` if that is asked for; marks it as just made.
    pub(crate) fn refresh(&mut self, tokens: &[u32], with_logits: bool) -> bool {
        self.clock += 1;
        let same = |entry: &&mut Entry<S>| *entry.tokens == *tokens && (entry.has_logits || !with_logits);
        match self.entries.values_mut().find(same) {
            Some(entry) => {
                entry.last_used = self.clock;
                true
            }
            None => false,
        }
    }

    /// Adds a snapshot, in the place of one of the same tokens, and drops others until the budget holds.
    pub(crate) fn insert(&mut self, new: NewEntry<'_>, snapshot: S) {
        let same = self
            .entries
            .iter()
            .find(|(_, entry)| *entry.tokens == *new.tokens)
            .map(|(&key, _)| key);
        if let Some(key) = same {
            self.remove(key);
        }
        let mut extended_by = 0;
        for entry in self.entries.values_mut() {
            if new.tokens.starts_with(&entry.tokens) {
                entry.extended_by += 1;
            } else if entry.tokens.starts_with(new.tokens) {
                extended_by += 1;
            }
        }
        self.clock += 1;
        let key = self.clock;
        self.parts.add(&new.parts);
        let entry = Entry {
            tokens: new.tokens.into(),
            snapshot,
            has_logits: new.has_logits,
            parts: new.parts,
            conversation: new.conversation.map(str::to_owned),
            last_used: self.clock,
            uses: 0,
            extended_by,
        };
        self.entries.insert(key, entry);
        while self.parts.bytes > self.budget || self.entries.len() > MAX_ENTRIES {
            // The new entry goes last: only where it alone exceeds the budget.
            let victim = self.victim(key, new.conversation).unwrap_or(key);
            self.remove(victim);
        }
    }

    /// Drops an entry.
    pub(crate) fn remove(&mut self, key: u64) {
        let Some(removed) = self.entries.remove(&key) else {
            return;
        };
        self.parts.remove(&removed.parts);
        for entry in self.entries.values_mut() {
            if removed.tokens.starts_with(&entry.tokens) {
                entry.extended_by -= 1;
            }
        }
    }

    /// The entry to drop next, other than `keep`.
    fn victim(&self, keep: u64, conversation: Option<&str>) -> Option<u64> {
        let rank = |entry: &Entry<S>| {
            let passed = entry.extended_by > 0 && entry.uses <= 1;
            let own = conversation.is_some() && entry.conversation.as_deref() == conversation;
            let group = match (passed, own) {
                (true, true) => 0,
                (true, false) => 1,
                (false, _) => 2,
            };
            (group, entry.last_used)
        };
        self.entries
            .iter()
            .filter(|(key, _)| **key != keep)
            .min_by_key(|(_, entry)| rank(entry))
            .map(|(&key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 100;

    fn cache(entries: usize) -> PrefixCache<&'static str> {
        PrefixCache::new(entries * BYTES)
    }

    fn add(cache: &mut PrefixCache<&'static str>, tokens: &[u32], name: &'static str, conversation: Option<&str>) {
        let identity = cache.clock as usize + 1_000_000;
        cache.insert(
            NewEntry {
                tokens,
                has_logits: true,
                parts: vec![(identity, BYTES)],
                conversation,
            },
            name,
        );
    }

    fn found(cache: &mut PrefixCache<&'static str>, prompt: &[u32]) -> Option<&'static str> {
        let (key, _) = cache.find(prompt)?;
        cache.get(key).copied()
    }

    #[test]
    fn the_longest_start_is_found() {
        let mut cache = cache(10);
        add(&mut cache, &[1], "one", None);
        add(&mut cache, &[1, 2, 3], "three", None);
        add(&mut cache, &[1, 2, 9, 9], "other", None);
        assert_eq!(found(&mut cache, &[1, 2, 3, 4]), Some("three"));
        assert_eq!(found(&mut cache, &[1, 2, 3]), Some("three"));
        assert_eq!(found(&mut cache, &[1, 2]), Some("one"));
        assert_eq!(found(&mut cache, &[2]), None);
    }

    #[test]
    fn a_whole_prompt_needs_logits() {
        let mut cache = cache(10);
        let bare = NewEntry {
            tokens: &[1, 2],
            has_logits: false,
            parts: vec![(1, BYTES)],
            conversation: None,
        };
        cache.insert(bare, "bare");
        assert_eq!(cache.find(&[1, 2]), None);
        assert_eq!(found(&mut cache, &[1, 2, 3]), Some("bare"));
        assert!(!cache.refresh(&[1, 2], true));
        assert!(cache.refresh(&[1, 2], false));
        add(&mut cache, &[1, 2], "full", None);
        assert_eq!(cache.len(), 1, "the better one takes the place of the other");
        assert_eq!(found(&mut cache, &[1, 2]), Some("full"));
    }

    #[test]
    fn bytes_that_are_shared_count_once() {
        let mut cache = PrefixCache::new(1000);
        let entry = |tokens: &'static [u32], parts| NewEntry {
            tokens,
            has_logits: true,
            parts,
            conversation: None,
        };
        cache.insert(entry(&[1], vec![(1, 300), (2, 50)]), ());
        cache.insert(entry(&[1, 2], vec![(1, 300), (3, 60)]), ());
        assert_eq!(cache.bytes(), 410);
        let (key, _) = cache.find(&[1]).unwrap();
        cache.remove(key);
        assert_eq!(cache.bytes(), 360);
        let (key, _) = cache.find(&[1, 2]).unwrap();
        cache.remove(key);
        assert_eq!((cache.bytes(), cache.len()), (0, 0));
    }

    #[test]
    fn older_turns_go_before_the_latest_of_any_conversation() {
        let mut cache = cache(3);
        add(&mut cache, &[5, 5], "b", Some("b"));
        add(&mut cache, &[1], "a1", Some("a"));
        add(&mut cache, &[1, 2], "a2", Some("a"));
        add(&mut cache, &[1, 2, 3], "a3", Some("a"));
        assert_eq!(found(&mut cache, &[1]), None, "the oldest turn of a went");
        add(&mut cache, &[1, 2, 3, 4], "a4", Some("a"));
        assert_eq!(found(&mut cache, &[5, 5]), Some("b"));
        assert_eq!(found(&mut cache, &[1, 2]), None);
        assert_eq!(found(&mut cache, &[1, 2, 3]), Some("a3"));
    }

    #[test]
    fn a_conversation_displaces_itself_before_others() {
        let mut cache = cache(4);
        for (tokens, name) in [(&[5][..], "b1"), (&[5, 6], "b2")] {
            add(&mut cache, tokens, name, Some("b"));
        }
        for (tokens, name) in [(&[1][..], "a1"), (&[1, 2], "a2"), (&[1, 2, 3], "a3")] {
            add(&mut cache, tokens, name, Some("a"));
        }
        assert_eq!(found(&mut cache, &[5]), Some("b1"));
        assert_eq!(found(&mut cache, &[1]), None);
    }

    #[test]
    fn a_shared_start_that_is_used_stays() {
        let mut cache = cache(3);
        add(&mut cache, &[1], "system prompt", None);
        for first in 2..20 {
            assert_eq!(found(&mut cache, &[1, first]), Some("system prompt"));
            add(&mut cache, &[1, first], "conversation", None);
        }
    }

    #[test]
    fn what_exceeds_the_budget_alone_is_not_kept_and_nothing_is_left_of_it() {
        let mut cache = PrefixCache::new(99);
        add(&mut cache, &[1], "too large", None);
        assert_eq!((cache.len(), cache.bytes()), (0, 0));
    }
}
