//! A range of immutable bytes whose owner (a mapped file, a buffer, the program itself) lives as long as the range.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use memmap2::{Mmap, MmapMut};

/// Immutable bytes, cheap to clone: a slice of a mapping, of an owned buffer or of the program's own data.
#[derive(Clone)]
pub struct Bytes {
    owner: Owner,
    range: Range<usize>,
}

#[derive(Clone)]
enum Owner {
    Mapped(Arc<Mmap>),
    Owned(Arc<Vec<u8>>),
    Static(&'static [u8]),
}

impl Owner {
    fn all(&self) -> &[u8] {
        match self {
            Owner::Mapped(map) => map,
            Owner::Owned(buffer) => buffer,
            Owner::Static(slice) => slice,
        }
    }
}

/// From this size on, a buffer gets pages of its own.
const OWN_PAGES: usize = 4 << 20;

impl Bytes {
    /// `len` bytes, zero until `fill` has written them; in huge pages where they are many and the system has such.
    pub(crate) fn build(len: usize, fill: impl Fn(&mut [u8])) -> Bytes {
        if len >= OWN_PAGES
            && let Ok(mut map) = MmapMut::map_anon(len)
        {
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            fill(&mut map);
            if let Ok(map) = map.make_read_only() {
                return Bytes::from(map);
            }
        }
        let mut buffer = vec![0; len];
        fill(&mut buffer);
        Bytes::from(buffer)
    }

    /// The part `range` of these bytes, or `None` where it does not lie inside them.
    pub fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Bytes {
            owner: self.owner.clone(),
            range: start..start + range.len(),
        })
    }
}

impl Bytes {
    /// The mapping that the bytes lie in, for devices that can use its pages in place.
    pub fn mapping(&self) -> Option<&Arc<Mmap>> {
        match &self.owner {
            Owner::Mapped(map) => Some(map),
            Owner::Owned(_) | Owner::Static(_) => None,
        }
    }
}

impl From<Mmap> for Bytes {
    fn from(map: Mmap) -> Self {
        Bytes {
            range: 0..map.len(),
            owner: Owner::Mapped(Arc::new(map)),
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(buffer: Vec<u8>) -> Self {
        Bytes {
            range: 0..buffer.len(),
            owner: Owner::Owned(Arc::new(buffer)),
        }
    }
}

impl From<&'static [u8]> for Bytes {
    fn from(slice: &'static [u8]) -> Self {
        Bytes {
            range: 0..slice.len(),
            owner: Owner::Static(slice),
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.owner.all()[self.range.clone()]
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.range.len())
    }
}
