//! Which snapshots are on the disk, and which of them goes first when room is needed.

use std::collections::HashMap;

use super::file::{Hash, Header};

/// A snapshot on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) tokens: usize,
    pub(crate) with_logits: bool,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// Whether other conversations branch off here.
    start: bool,
    /// Whether this model can use it; others' count and age with the rest.
    own: bool,
    /// Whether a longer snapshot starts with its tokens.
    passed: bool,
    last_used: u64,
}

/// Snapshots on the disk by their keys.
#[derive(Debug, Default)]
pub(crate) struct Index {
    entries: HashMap<Hash, Entry>,
    bytes: u64,
    clock: u64,
}

/// Hashes of the beginnings of a row of tokens, one after the other.
pub(crate) struct Keys<'a> {
    hash: blake3::Hasher,
    tokens: &'a [u32],
    done: usize,
}

impl<'a> Keys<'a> {
    /// For snapshots of the model `identity`.
    pub(crate) fn new(identity: &Hash, tokens: &'a [u32]) -> Self {
        Keys {
            hash: blake3::Hasher::new_keyed(identity),
            tokens,
            done: 0,
        }
    }

    /// The key of the first `len` tokens, which are no fewer than last time and at most all of them.
    pub(crate) fn of(&mut self, len: usize) -> Hash {
        let mut buffer = [0; 4096];
        for tokens in self.tokens[self.done..len].chunks(buffer.len() / 4) {
            let bytes = &mut buffer[..tokens.len() * 4];
            for (token, bytes) in tokens.iter().zip(bytes.chunks_exact_mut(4)) {
                bytes.copy_from_slice(&token.to_le_bytes());
            }
            self.hash.update(bytes);
        }
        self.done = len;
        *self.hash.finalize().as_bytes()
    }
}

impl Index {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn contains(&self, key: &Hash) -> bool {
        self.entries.contains_key(key)
    }

    /// Adds the snapshot that a file has, in the place of an earlier one of the same tokens.
    pub(crate) fn insert(&mut self, header: &Header, identity: &Hash) {
        self.remove(&header.key);
        self.clock += 1;
        let entry = Entry {
            tokens: usize::try_from(header.tokens).unwrap_or(usize::MAX),
            with_logits: header.with_logits,
            bytes: header.file_bytes().unwrap_or(u64::MAX),
            start: header.start,
            own: header.identity == *identity,
            passed: false,
            last_used: self.clock,
        };
        self.bytes = self.bytes.saturating_add(entry.bytes);
        self.entries.insert(header.key, entry);
    }

    pub(crate) fn remove(&mut self, key: &Hash) -> Option<Entry> {
        let removed = self.entries.remove(key)?;
        self.bytes = self.bytes.saturating_sub(removed.bytes);
        Some(removed)
    }

    pub(crate) fn touch(&mut self, key: &Hash) {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.last_used = self.clock;
        }
    }

    /// The longest snapshot of more than `more_than` tokens that `prompt` starts with. One of the whole prompt counts only with its logits.
    pub(crate) fn longest(&self, prompt: &[u32], more_than: usize, identity: &Hash) -> Option<(Hash, Entry)> {
        let serves = |entry: &&Entry| {
            let whole = entry.tokens == prompt.len();
            entry.own && more_than < entry.tokens && entry.tokens <= prompt.len() && (entry.with_logits || !whole)
        };
        let mut lengths: Vec<usize> = self.entries.values().filter(serves).map(|entry| entry.tokens).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let mut keys = Keys::new(identity, prompt);
        let found = lengths.into_iter().map(|len| keys.of(len));
        found
            .filter_map(|key| Some((key, self.entries.get(&key).filter(serves)?.clone())))
            .last()
    }

    /// Marks the snapshots of the beginnings of `tokens` as passed.
    pub(crate) fn pass(&mut self, tokens: &[u32], identity: &Hash) {
        let shorter = |entry: &Entry| entry.own && entry.tokens < tokens.len();
        let mut lengths: Vec<usize> = self
            .entries
            .values()
            .filter(|entry| shorter(entry))
            .map(|entry| entry.tokens)
            .collect();
        lengths.sort_unstable();
        lengths.dedup();
        let mut keys = Keys::new(identity, tokens);
        for len in lengths {
            if let Some(entry) = self.entries.get_mut(&keys.of(len)) {
                entry.passed = true;
            }
        }
    }

    /// What to delete next: first older turns of conversations that went on, then what was used longest ago.
    pub(crate) fn victim(&self) -> Option<Hash> {
        let rank = |entry: &Entry| (!entry.passed || entry.start, entry.last_used);
        self.entries
            .iter()
            .min_by_key(|(_, entry)| rank(entry))
            .map(|(key, _)| *key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Hash = [1; 32];

    fn header(tokens: &[u32], start: bool, identity: Hash) -> Header {
        Header {
            identity,
            key: Keys::new(&identity, tokens).of(tokens.len()),
            tokens: tokens.len() as u64,
            state_bytes: 100,
            with_logits: true,
            start,
        }
    }

    fn add(index: &mut Index, tokens: &[u32], start: bool) -> Hash {
        let header = header(tokens, start, OWN);
        index.insert(&header, &OWN);
        index.pass(tokens, &OWN);
        header.key
    }

    #[test]
    fn a_key_does_not_depend_on_the_way_to_it() {
        let tokens: Vec<u32> = (0..5000).collect();
        let mut keys = Keys::new(&OWN, &tokens);
        keys.of(1);
        keys.of(1030);
        assert_eq!(keys.of(5000), Keys::new(&OWN, &tokens).of(5000));
        assert_ne!(Keys::new(&OWN, &tokens).of(4999), Keys::new(&OWN, &tokens).of(5000));
        assert_ne!(Keys::new(&[2; 32], &tokens).of(9), Keys::new(&OWN, &tokens).of(9));
    }

    #[test]
    fn the_longest_start_that_serves_is_found() {
        let mut index = Index::default();
        let one = add(&mut index, &[1], false);
        let three = add(&mut index, &[1, 2, 3], false);
        add(&mut index, &[1, 2, 9, 9], false);
        index.insert(&header(&[1, 2, 3, 4], false, [2; 32]), &OWN);
        let bare = Header {
            with_logits: false,
            ..header(&[1, 2, 3, 4, 5], false, OWN)
        };
        index.insert(&bare, &OWN);
        let longest = |prompt: &[u32], more_than| index.longest(prompt, more_than, &OWN).map(|(key, _)| key);
        assert_eq!(longest(&[1, 2, 3, 4], 0), Some(three));
        assert_eq!(longest(&[1, 2, 3, 4], 3), None);
        assert_eq!(longest(&[1, 2], 0), Some(one));
        assert_eq!(
            longest(&[1, 2, 3, 4, 5], 0),
            Some(three),
            "the whole prompt needs logits"
        );
        assert_eq!(longest(&[1, 2, 3, 4, 5, 6], 0), Some(bare.key));
        assert_eq!(longest(&[2], 0), None);
    }

    #[test]
    fn older_turns_go_first_and_starts_of_conversations_stay() {
        let mut index = Index::default();
        let system = add(&mut index, &[1], true);
        let other = add(&mut index, &[5], false);
        let first = add(&mut index, &[1, 2], false);
        let second = add(&mut index, &[1, 2, 3], false);
        index.touch(&system);
        for expected in [first, other, second, system] {
            assert_eq!(index.victim(), Some(expected));
            index.remove(&expected);
        }
        assert_eq!((index.len(), index.bytes(), index.victim()), (0, 0, None));
    }
}
