//! Who touched which byte: the data for finding races within a dispatch.

use crate::emulator::abi::{AccessEvent, access};

/// One access to one byte.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stamp {
    pc: usize,
    group: u32,
    thread: u16,
    epoch: u16,
    simd_epoch: u16,
    atomic: bool,
    /// False in cells that nobody has touched.
    valid: bool,
}

impl Stamp {
    pub fn new(event: &AccessEvent, group: u32) -> Self {
        Self {
            pc: event.pc,
            group,
            // Threads are fewer than 1024; epochs wrap only after more barriers than a kernel has.
            thread: event.thread as u16,
            epoch: event.epoch as u16,
            simd_epoch: event.simd_epoch as u16,
            atomic: event.kind == access::ATOMIC,
            valid: true,
        }
    }

    /// Whether this earlier access is ordered before `now`: made by the same thread, or separated from it by a barrier of
    /// their threadgroup or simdgroup. Different threadgroups of a dispatch are never ordered.
    fn before(&self, now: &Self) -> bool {
        !self.valid
            || self.group == now.group
                && (self.thread == now.thread
                    || self.epoch != now.epoch
                    || self.thread / 32 == now.thread / 32 && self.simd_epoch != now.simd_epoch)
            || self.atomic && now.atomic
    }
}

#[derive(Clone, Copy, Default)]
struct Cell {
    write: Stamp,
    read: Stamp,
}

const PAGE: usize = 256;

/// A cell for each byte of a memory, made when first touched.
pub(crate) struct Cells {
    pages: Vec<Option<Box<[Cell; PAGE]>>>,
}

/// Two accesses that nothing orders.
pub(crate) struct Race {
    other: Stamp,
    other_wrote: bool,
}

impl Race {
    pub fn other_pc(&self) -> usize {
        self.other.pc
    }

    pub fn text(&self, thread: u32) -> String {
        let did = if self.other_wrote { "wrote" } else { "read" };
        format!(
            "thread {} of threadgroup {} {did} it and nothing orders that with thread {thread}",
            self.other.thread, self.other.group
        )
    }
}

impl Cells {
    pub fn new(len: usize) -> Self {
        Self {
            pages: (0..len.div_ceil(PAGE)).map(|_| None).collect(),
        }
    }

    /// Forgets everything: a new threadgroup's memory.
    pub fn clear(&mut self) {
        for page in self.pages.iter_mut().flatten() {
            page.fill(Cell::default());
        }
    }

    /// Whether a thread of `group` has written all these bytes.
    pub fn written(&self, at: usize, len: usize, group: u32) -> bool {
        (at..at + len).all(|i| match self.pages.get(i / PAGE) {
            Some(Some(page)) => page[i % PAGE].write.valid && page[i % PAGE].write.group == group,
            _ => false,
        })
    }

    /// Compares an access with the earlier ones and records it. `shared`: other threadgroups reach the memory too.
    pub fn check(&mut self, at: usize, len: usize, kind: u32, now: Stamp, shared: bool) -> Option<Race> {
        let writes = kind != 0;
        let mut race = None;
        for i in at..at + len {
            let Some(page) = self.pages.get_mut(i / PAGE) else {
                break;
            };
            let cell = &mut page.get_or_insert_with(|| Box::new([Cell::default(); PAGE]))[i % PAGE];
            let ordered = |earlier: &Stamp| earlier.before(&now) || !shared && earlier.group != now.group;
            if race.is_none() {
                if !ordered(&cell.write) {
                    race = Some(Race {
                        other: cell.write,
                        other_wrote: true,
                    });
                } else if writes && !ordered(&cell.read) {
                    race = Some(Race {
                        other: cell.read,
                        other_wrote: false,
                    });
                }
            }
            if writes {
                cell.write = now;
            } else if ordered(&cell.read) {
                // A reader that is not ordered before this one stays: a later write must be ordered after both, and this
                // one's own epoch cannot be older.
                cell.read = now;
            }
        }
        race
    }
}
